"""Round report: the metrics of one finished round or update."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.fields import Count, Sentence, StatusModel, map_by
from rljob_api.status.episodes import EpisodesReport
from rljob_api.status.switches import LayoutSwitchesReport


class RoundKind(StrEnum):
    """Plain rounds train on all that they launch.

    With tail batching, Short rounds race, and Long rounds take the deferred prompts.
    """

    PLAIN = "Plain"
    SHORT = "Short"
    LONG = "Long"


class LayoutForecast(StatusModel):
    """Predicted duration of a round with replicas of this size."""

    tensor_parallel_size: Annotated[int, Field(ge=1)]
    """Accelerators of one replica."""
    seconds: Annotated[float, Field(ge=0)]
    """Seconds of the complete round."""


class MachineForecast(StatusModel):
    """Predicted duration of a round with this number of rollout machines."""

    machines: Annotated[int, Field(ge=1)]
    """Number of machines."""
    seconds: Annotated[float, Field(ge=0)]
    """Seconds of the complete round."""


class LoanState(StrEnum):
    """The loans of rollout machines to training in a round."""

    LOANED = "Loaned"
    NOT_LOANED = "NotLoaned"


class LoanReport(StatusModel):
    """The loan of rollout machines to training in one round."""

    state: LoanState
    """Loaned or NotLoaned."""
    reason: Annotated[str | None, Field(max_length=64)] = None
    """Why not, at the last check: NoGain, KVCacheFull, TooFewMachines, NoWorker, TrainerUnavailable (the trainer is a
    new one, or has failed), PolicyFailed (an error, see warnings), or OutsideWindow (no check was due between
    minCompleted and maxCompleted). Or why this job's machines never are: OneMachine, NeedsReferenceModel
    (klCoefficient above 0), SwitchedOff (maxCompleted is 0). Absent with Loaned."""


class RuleReward(StatusModel):
    """The values of one reward rule, before its weight, over the responses trained on."""

    name: Annotated[str, Field(max_length=63)]
    """Name of the rule in spec.rewards."""
    mean: float
    """Mean value."""
    deviation: Annotated[float, Field(ge=0)]
    """Standard deviation."""


class SourceReport(StatusModel):
    """The part of an update that came from one prompt source."""

    name: Annotated[str, Field(max_length=63)]
    """Name of the source in spec.data.sources."""
    prompts: Count
    """Prompts trained on."""
    reward: float | None = None
    """Mean reward of their responses; absent without any."""


class RoundReport(StatusModel):
    """Metrics of one finished round."""

    round: Count
    """Number of the round, from 1."""
    kind: RoundKind = RoundKind.PLAIN
    """Plain, Short or Long."""
    seconds: Annotated[float | None, Field(ge=0)] = None
    """From the launch to new weights in every replica."""
    generation_seconds: Annotated[float | None, Field(ge=0)] = None
    """Until the last response that counts."""
    training_seconds: Annotated[float | None, Field(ge=0)] = None
    """Seconds of the update."""
    broadcast_seconds: Annotated[float | None, Field(ge=0)] = None
    """From the publication until every replica has loaded the weights."""
    responses: Count | None = None
    """Responses trained on."""
    tokens: Count | None = None
    """Response tokens generated, discarded ones included."""
    mean_response_tokens: Annotated[float | None, Field(ge=0)] = None
    """Mean over the responses trained on."""
    max_response_tokens: Count | None = None
    """Maximum over the responses trained on."""
    preemptions: Count | None = None
    """Requests that engines preempted for lack of KV cache."""
    reward: float | None = None
    """Mean reward of the responses trained on."""
    reward_rules: Annotated[tuple[RuleReward, ...] | None, Field(max_length=16, json_schema_extra=map_by("name"))] = (
        None
    )
    """Values of each reward rule, in the order of spec.rewards."""
    sources: Annotated[tuple[SourceReport, ...] | None, Field(max_length=16, json_schema_extra=map_by("name"))] = None
    """Prompts and rewards of each prompt source that was trained on, by name; absent without spec.data.sources."""
    group_reward_deviation: Annotated[float | None, Field(ge=0)] = None
    """Standard deviation of the rewards inside a group, mean over the groups trained on. Near 0 there is nothing to
    learn from."""
    equal_reward_groups: Annotated[float | None, Field(ge=0, le=1)] = None
    """Share of the groups trained on whose rewards are equal. They give no gradient. With dynamic sampling it is 0, and
    filteredGroups counts them."""
    truncated_responses: Annotated[float | None, Field(ge=0, le=1)] = None
    """Share of the responses trained on that were cut at maxResponseTokens."""
    response_tokens_p50: Count | None = None
    """Median length of the responses trained on."""
    response_tokens_p90: Count | None = None
    """Length that 90 % of the responses trained on do not exceed."""
    response_tokens_p99: Count | None = None
    """Length that 99 % of the responses trained on do not exceed."""
    # Without bounds, or the API server would refuse the status: rounding may put an entropy or a KL below 0, and a
    # loss of the user's may report any number.
    entropy: float | None = None
    """Mean entropy of the trainer's token distributions, in nats. Near 0 the model explores no more."""
    reference_kl: float | None = None
    """KL divergence from the initial model, mean over the tokens trained on. Absent without klCoefficient."""
    mismatch_kl: float | None = None
    """KL divergence of the engines' distribution from the trainer's, mean over the tokens trained on."""
    clip_fraction_low: float | None = None
    """Share of the tokens trained on that the loss clips at its lower bound. Absent where a loss function does not
    report clip_fraction_low."""
    clip_fraction_high: float | None = None
    """The same at its upper bound: clip_fraction_high."""
    episodes: EpisodesReport | None = None
    """Turns, tokens, seconds and failures of a job with environments. Absent in other jobs."""
    idle_tail: Annotated[float | None, Field(ge=0, le=1)] = None
    """Share of the replicas' time in which they had no response while others generated, or while nothing was left for
    them. With idleEnvironments, idleRewards, idleTraining, idleWeights and the share of work it adds up to 1."""
    idle_environments: Annotated[float | None, Field(ge=0, le=1)] = None
    """Share of the replicas' time in which all their responses waited for their environments: tools, the harness, or
    a runner. 0 in a job without environments."""
    idle_rewards: Annotated[float | None, Field(ge=0, le=1)] = None
    """Share of the replicas' time in which no replica had a response, because rewards were outstanding."""
    idle_training: Annotated[float | None, Field(ge=0, le=1)] = None
    """Share of the replicas' time in which they waited for training: for the update (OnPolicy), or because the buffer
    was full (Asynchronous)."""
    idle_weights: Annotated[float | None, Field(ge=0, le=1)] = None
    """Share of the replicas' time in which they waited for new weights or loaded them."""
    aborted_samples: Count | None = None
    """Samples dropped because of a failure of the system."""
    filtered_groups: Count | None = None
    """Groups that were dropped: a reward or an environment kept failing, or (dynamic sampling) rewards were equal."""
    unscored_groups: Count | None = None
    """Of these, groups in which a reward could not score a response, or kept failing. A part of such a group would be
    selected by what can be scored."""
    environment_failed_groups: Count | None = None
    """Of these, groups in which the environment of an episode kept failing: its runner, its tools or the gateway."""
    launched_prompts: Count | None = None
    """Prompts launched; more than are trained on where rounds race or groups are filtered."""
    launched_responses: Count | None = None
    """Responses launched."""
    aborted_responses: Count | None = None
    """Responses stopped while they ran, because their group or the round was complete without them."""
    requeued_prompts: Count | None = None
    """Prompts that lost the race and wait for a long round."""
    discarded_tokens: Count | None = None
    """Tokens of the responses that are not trained on."""
    lost_version_tokens: Count | None = None
    """Of these, tokens of groups that are drawn again because no replica holds their weights any more. Asynchronous."""
    launched_mean_tokens: Annotated[float | None, Field(ge=0)] = None
    """Mean over all launched responses, stopped ones by a survival estimate (Kaplan-Meier). The difference to
    meanResponseTokens shows how much the race prefers short responses."""
    scored_reward: float | None = None
    """Mean reward of all responses that have one, trained on or not."""
    deferred_prompts: Count | None = None
    """Prompts that wait for a long round after this one."""
    plan: Annotated[str | None, Field(max_length=64)] = None
    """Plan of the round: plain, or a race with its factors, and whether finished groups were trained on during
    generation."""
    plan_reason: Sentence | None = None
    """Reason, where the job chose the plan (Auto)."""
    predicted_seconds: Annotated[float | None, Field(ge=0)] = None
    """Prediction of `seconds`, before the draw. Absent for a round that another coordinator began."""
    predicted_speedup: Annotated[float | None, Field(ge=0)] = None
    """Predicted speedup of the job by this plan over plain rounds, long rounds included."""
    reward_delay_seconds: Annotated[float | None, Field(ge=0)] = None
    """Mean time from the end of a response to its reward."""
    early_groups: Count | None = None
    """Groups whose gradients were computed before the update, while others still generated (stream training)."""
    layout_forecasts: Annotated[tuple[LayoutForecast, ...] | None, Field(max_length=16)] = None
    """Predictions for the round in each tensor parallel size in which engines have run, before the draw. The operator
    uses them. Absent without a choice, or without anything to predict from."""
    machine_forecasts: Annotated[tuple[MachineForecast, ...] | None, Field(max_length=3)] = None
    """Predictions for the round with the present machines, one less and one more, before the draw. The operator uses
    them. Absent where it does not choose the number, or without anything to predict from."""
    tensor_parallel_size: Annotated[int | None, Field(ge=1)] = None
    """Accelerators of one replica on most machines, at the start of the round. Machines whose engines refused another
    layout keep theirs."""
    layout_switches: LayoutSwitchesReport | None = None
    """Changes of the size inside the round. Absent without adaptiveTensorParallel."""
    layout_seconds: Annotated[float | None, Field(ge=0)] = None
    """Seconds of layout changes before this round. 0: no change."""
    overlap_seconds: Annotated[float | None, Field(ge=0)] = None
    """Seconds of training during generation. trainingSeconds is the rest."""
    reward_seconds: Annotated[float | None, Field(ge=0)] = None
    """Seconds of rewards during generation, summed over the samples, waiting included."""
    program_runs: Count | None = None
    """Runs of a program against a test (rewards of kind Code)."""
    program_timeouts: Count | None = None
    """Of these, runs past their adaptive timeout."""
    shadow_timeouts: Count | None = None
    """Of these, runs in the shadow sample, which continue for measurement."""
    late_programs: Count | None = None
    """Of these, runs that were right in the end: their share shows how many timeouts were unjust."""
    loan: LoanReport | None = None
    """Whether rollout machines were loaned to training. Absent in a round that did not stream."""
    loaned_machines: Count | None = None
    """Rollout machines loaned to training in this round."""
    loaned_groups: Count | None = None
    """Groups whose gradients loaned machines computed."""
    trainer_wait_seconds: Annotated[float | None, Field(ge=0)] = None
    """Seconds that the trainer waited for the batch of this update. Asynchronous."""
    buffer_full_seconds: Annotated[float | None, Field(ge=0)] = None
    """Seconds for which replicas were paused during this update because the buffer was full, on average.
    Asynchronous."""
    predicted_gain_seconds: float | None = None
    """Seconds by which the loan was predicted to shorten the round. Negative for a loan that was not made."""

    staleness: Annotated[float | None, Field(ge=0)] = None
    """Mean number of updates between the weights of a group and this update. Asynchronous."""
    max_staleness: Count | None = None
    """Largest such number."""
    capacity_prompts: Count | None = None
    """Prompts that may be open after this update: in flight, or ready to be trained on. Asynchronous."""
    repacks: Count | None = None
    """Replicas whose trajectories were merged onto others, so that they continue with newer weights. Asynchronous."""
    moved_responses: Count | None = None
    """Responses that continued at another replica because of that."""
