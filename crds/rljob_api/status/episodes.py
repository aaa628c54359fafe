"""Episodes report: the metrics of a round whose responses are episodes of several turns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_api.fields import Count, StatusModel, map_by

MOST_METRICS = 64
"""Metrics of environments that a report has: the status has a limited size."""

Share = Annotated[float | None, Field(ge=0, le=1)]
Seconds = Annotated[float | None, Field(ge=0)]


class FailedAttempts(StatusModel):
    """Attempts that a failure of one part ended."""

    part: Annotated[str, Field(max_length=63)]
    """environment, tool server, gateway, engine, weights, or no turn (the agent never asked the model)."""
    attempts: Count
    """Attempts since the round before."""


class EnvironmentLoad(StatusModel):
    """The work of one environment's runners."""

    name: Annotated[str, Field(max_length=63)]
    """Name of the environment."""
    most_open: Count
    """Most episodes since the round before that were open at a time: with a runner, or waiting for one."""
    most_training: Count | None = None
    """Most of training that were open at a time. The number of runners follows from it."""
    wait_seconds: Seconds = None
    """Mean seconds that these episodes waited for a runner. Absent if none has begun."""


class EnvironmentMetric(StatusModel):
    """A metric that an environment reports of its episodes."""

    environment: Annotated[str, Field(max_length=63)]
    """Name of the environment."""
    name: Annotated[str, Field(max_length=128)]
    """Name of the metric, as the environment reports it."""
    mean: float
    """Mean over the episodes trained on that report it."""
    episodes: Count
    """Number of these episodes."""


class EpisodesReport(StatusModel):
    """Metrics of the episodes trained on, and of all attempts since the round before, evaluations included."""

    turns_mean: Annotated[float | None, Field(ge=0)] = None
    """Mean turns of an episode trained on."""
    turns_p50: Count | None = None
    """Median of the turns."""
    turns_p90: Count | None = None
    """Turns that 90 % of the episodes trained on do not exceed."""
    turns_p99: Count | None = None
    """Turns that 99 % of the episodes trained on do not exceed."""
    sampled_tokens: Count | None = None
    """Tokens that the model sampled in these episodes. Only they are trained on."""
    given_tokens: Count | None = None
    """Tokens that the model was given in them: prompts, results of tools, and the template's, each counted once."""
    model_seconds: Seconds = None
    """Mean seconds of an episode in which a turn was open."""
    outside_seconds: Seconds = None
    """Mean seconds of an episode in which no turn was open: tools, the harness, and waiting between turns."""
    outside_token_seconds: Seconds = None
    """By how many seconds outside these episodes are longer for each token that was sampled more, by least squares; at
    most outsideSeconds over the mean tokens. The rest of outsideSeconds is the same for short and long episodes."""
    truncated_by_turns: Share = None
    """Share of the episodes trained on that reached maxTurns."""
    truncated_by_tokens: Share = None
    """Share that reached the limit of tokens."""
    truncated_by_seconds: Share = None
    """Share that reached timeoutSeconds."""
    truncated_by_forks: Share = None
    """Share that reached the limit of forks."""
    forks: Count | None = None
    """Turns of these episodes that opened a branch beside an existing one. Above 5 % of the turns of all attempts, the
    warning ManyForks says so: the client or the template rewrites earlier messages."""
    prefix_hit_share: Share = None
    """Share of the prompt tokens of later turns, since the round before, that their engines held already. The first
    turn of an attempt does not count. Absent where engines do not report it, or no attempt had a later turn."""
    reencoded_tokens: Count | None = None
    """Sampled tokens, since the round before, that the gateway found in another form in a later prompt. The prompt then
    begins a branch from the text. It must be 0. The audit (rljob check) proves the tokens that were trained on."""
    fake_zeros: Count | None = None
    """Responses trained on with a reward although a failure of ours ended their attempt, by the store. It must be 0."""
    differing_traces: Count | None = None
    """Attempts, since the round before, whose environment states other turns or tokens than the store has. The stored
    ones count. The coordinator's log tells the difference."""
    attempts: Count | None = None
    """Attempts that ended since the round before, in any way."""
    retries: Count | None = None
    """Requests since the round before that received a turn which was asked for before."""
    turns_of_newer_weights: Count | None = None
    """Turns of these episodes whose weights are newer than those of the episode's oldest turn."""
    interrupted_turns: Count | None = None
    """Turns since the round before that newer weights interrupted. They are generated again from their beginning."""
    interrupted_tokens: Count | None = None
    """Tokens that had arrived of these turns."""
    load_wait_seconds: Seconds = None
    """Seconds since the round before that turns waited while weights were loaded, summed over the turns."""
    tool_calls: Count | None = None
    """Calls of tools since the round before that runners reported, where their environment is of kind Tools."""
    resumed_attempts: Count | None = None
    """Attempts since the round before whose runner was lost, and that another one went on with, or ran again. Each time
    counts."""
    replayed_calls: Count | None = None
    """Calls that these runners executed again with the same answer, to bring tools to their state."""
    replayed_turns: Count | None = None
    """Recorded turns that programs asked for again, because another runner ran them again from their beginning."""
    refused_replays: Count | None = None
    """Attempts since the round before that ended because such a call had another answer, or because such a program
    asked for something else. They are tried again."""
    calls_executed_twice: Count | None = None
    """Calls of Stateless tools that were stored, and executed again. It must be 0."""
    failed_attempts: Annotated[
        tuple[FailedAttempts, ...] | None, Field(max_length=16, json_schema_extra=map_by("part"))
    ] = None
    """Attempts since the round before that a failure of ours ended, by the part that failed. They are tried again."""
    environments: Annotated[
        tuple[EnvironmentLoad, ...] | None, Field(max_length=16, json_schema_extra=map_by("name"))
    ] = None
    """The work of each environment's runners, evaluations included."""
    metrics: Annotated[
        tuple[EnvironmentMetric, ...] | None,
        Field(max_length=MOST_METRICS, json_schema_extra=map_by("environment", "name")),
    ] = None
    """What environments measured of the episodes trained on: the job's first 64 metrics, shared among environments."""
