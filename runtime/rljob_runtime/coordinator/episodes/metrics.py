"""Episode metrics: turns, tokens, seconds and ends of the episodes that a round trained on, and failures since then."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from rljob_api.status import EnvironmentLoad, EnvironmentMetric, EpisodesReport, FailedAttempts
from rljob_api.status.episodes import MOST_METRICS
from rljob_runtime.coordinator.episodes.attempt import Attempt
from rljob_runtime.coordinator.episodes.totals import BookTotals
from rljob_runtime.coordinator.reporting.group_metrics import quantile
from rljob_runtime.perf_model.outside_time import token_seconds
from rljob_runtime.protocols.trajectory import Response
from rljob_runtime.scheduling.episodes.counts import episode_counts
from rljob_runtime.scheduling.episodes.ends import NO_FAILURES
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.scheduling.episodes.runner_loads import RunnerLoad
from rljob_runtime.scheduling.status_cadence import rounded

Trained = Sequence[tuple[Attempt, Response]]
"""Attempts, each with the response that was trained on."""


def episodes_report(
    trained: Trained, since: BookTotals, loads: Mapping[str, RunnerLoad], fake_zeros: int, names: MetricNames
) -> EpisodesReport:
    """Return the metrics of a round. `since` and `loads`: what was counted since the round before.

    `fake_zeros`: trained responses whose attempt a failure of ours ended, as the store has it. `names`: the metrics of
    environments that the job's reports have.

    Its time grows with the tokens, so the event loop must not call it."""
    counts = [episode_counts(attempt.episode.nodes) for attempt, _ in trained]
    turns = sorted(one.turns for one in counts)
    timed = [(len(attempt.token_ids), one) for attempt, _ in trained if (one := attempt.times) is not None]
    times = [one for _, one in timed]
    limits = [attempt.episode.end.limit for attempt, _ in trained if attempt.episode.end is not None]
    failed = [
        FailedAttempts(part=cause, attempts=count)
        for cause, count in sorted(since.aborts.items())
        if count and cause not in NO_FAILURES
    ]
    return EpisodesReport(
        turns_mean=rounded(fmean(turns)),
        turns_p50=quantile(turns, 0.5),
        turns_p90=quantile(turns, 0.9),
        turns_p99=quantile(turns, 0.99),
        sampled_tokens=sum(one.sampled_tokens for one in counts),
        given_tokens=sum(one.given_tokens for one in counts),
        model_seconds=rounded(fmean(one.model for one in times)) if times else None,
        outside_seconds=rounded(fmean(one.outside for one in times)) if times else None,
        outside_token_seconds=rounded(token_seconds([(tokens, one.outside) for tokens, one in timed]))
        if times
        else None,
        truncated_by_turns=rounded(limits.count(Limit.TURNS) / len(trained)),
        truncated_by_tokens=rounded(limits.count(Limit.TOKENS) / len(trained)),
        truncated_by_seconds=rounded(limits.count(Limit.SECONDS) / len(trained)),
        truncated_by_forks=rounded(limits.count(Limit.FORKS) / len(trained)),
        forks=sum(one.forks for one in counts),
        prefix_hit_share=rounded(since.held_prompt_tokens / since.later_prompt_tokens)
        if since.later_prompt_tokens
        else None,
        reencoded_tokens=since.reencoded_tokens,
        fake_zeros=fake_zeros,
        differing_traces=since.differing_traces,
        attempts=since.ends.total(),
        retries=since.retries,
        turns_of_newer_weights=sum(turns_of_newer_weights(attempt, response) for attempt, response in trained),
        interrupted_turns=since.interrupted_turns,
        interrupted_tokens=since.interrupted_tokens,
        load_wait_seconds=rounded(since.load_wait_seconds),
        tool_calls=since.tool_calls,
        resumed_attempts=since.resumed,
        replayed_calls=since.replayed_calls,
        replayed_turns=since.replayed_turns,
        refused_replays=since.refused_replays,
        calls_executed_twice=since.calls_executed_twice,
        failed_attempts=tuple(failed) or None,
        environments=tuple(_load(name, load) for name, load in loads.items()) or None,
        metrics=names.admit(environment_metrics(trained)) or None,
    )


def environment_metrics(trained: Trained) -> tuple[EnvironmentMetric, ...]:
    """Return the mean of each metric that environments reported of these attempts, by environment and name."""
    values: dict[tuple[str, str], list[float]] = {}
    for attempt, _ in trained:
        reported = attempt.report.metrics if attempt.report is not None else {}
        for name, value in reported.items():
            values.setdefault((attempt.environment, name), []).append(value)
    means = {key: _mean(each) for key, each in sorted(values.items())}
    return tuple(
        EnvironmentMetric(environment=environment, name=name, mean=mean, episodes=len(values[environment, name]))
        for (environment, name), mean in means.items()
        if mean is not None
    )


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean, rounded; None if it is beyond the range of floats."""
    try:
        mean = rounded(fmean(values))
    except OverflowError:
        return None
    return mean if math.isfinite(mean) else None


class MetricNames:
    """The metrics of environments that a job's reports have: the first ones, an even share for each environment.

    One with names of its own for each task would begin new curves in each round."""

    def __init__(self, environments: int = 1) -> None:
        self._share = max(1, MOST_METRICS // max(1, environments))
        self._known: defaultdict[str, set[str]] = defaultdict(set)

    def admit(self, found: Sequence[EnvironmentMetric]) -> tuple[EnvironmentMetric, ...]:
        """Return those of a round that its report has. Of new names those of most episodes come first."""
        for one in sorted(found, key=lambda one: -one.episodes):
            names = self._known[one.environment]
            if len(names) < self._share:
                names.add(one.name)
        return tuple(one for one in found if one.name in self._known[one.environment])

    @property
    def is_empty(self) -> bool:
        """Whether no report had a metric."""
        return not self._known


def _load(name: str, load: RunnerLoad) -> EnvironmentLoad:
    wait = rounded(load.waited / load.begun) if load.begun else None
    return EnvironmentLoad(name=name, most_open=load.most_open, most_training=load.most_training, wait_seconds=wait)


def turns_of_newer_weights(attempt: Attempt, response: Response) -> int:
    """Count the turns whose version is newer than the response's, which is that of its oldest turn."""
    return sum(turn.weight_version > response.weight_version for turn in attempt.recorded.values())
