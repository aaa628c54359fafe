"""Runtime status: `status.runtime`, which only the coordinator applies."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.fields import Count, Name, Sentence, StatusModel, Timestamp, map_by
from rljob_api.status.evaluations import EvaluationReport
from rljob_api.status.round_report import RoundKind, RoundReport


class FinishedOutcome(StrEnum):
    """Outcome of the run, as the coordinator reports it."""

    COMPLETE = "Complete"
    FAILED = "Failed"


class RelayTopology(StatusModel):
    """The chain of the weight broadcast.

    `status.relay` holds the operator's order, and `status.runtime.relay` the coordinator's chain after repairs.
    """

    epoch: Count = 0
    """Rises when the membership changes. A relay of a lower epoch is refused."""
    revision: Count | None = None
    """Rises with each repair by the coordinator, within the epoch."""
    master: Annotated[str | None, Field(max_length=63)] = None
    """The machine that receives from the trainer: the first of the chain."""
    chain: tuple[Annotated[str, Field(max_length=63)], ...] = Field(default=(), max_length=1024)
    """Machines in the order of the broadcast."""
    weight_version: Count | None = None
    """The newest version on the complete chain."""


class Suspect(StatusModel):
    """A machine that the data plane suspects. The operator decides."""

    machine: Annotated[str, Field(max_length=63)]
    """The machine."""
    incarnation: Count
    """Its incarnation: an older report says nothing about a newer pod."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """HeartbeatLost, BrokenSocket, ProcessExited, NotJoined, KeepsFailing (restarted in place, and failed again within
    restartWindowSeconds), …"""
    witnesses: tuple[Annotated[str, Field(max_length=63)], ...] = Field(default=(), max_length=8)
    """The reporter: machines, or `coordinator`."""
    since: Timestamp | None = None
    """Time of the first report."""


class Finished(StatusModel):
    """End of the run, as the coordinator reports it."""

    outcome: FinishedOutcome
    """Complete or Failed."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """One word, e.g. RoundsFinished, RewardsKeepFailing, ModelNotUsable."""
    message: Sentence = ""
    """A sentence for people."""


class StatusWarning(StatusModel):
    """A condition that needs a person and does not end the run yet, e.g. a full disk at a checkpoint."""

    reason: Annotated[str, Field(max_length=128)]
    """One word, e.g. CheckpointFailed. With SandboxUnavailable, RewardsUnavailable, ExportFailed, EngineMismatch and
    StoreHeld the job makes no progress, and is Stalled."""
    message: Sentence = ""
    """The problem, and its cure."""


class RuntimeTotals(StatusModel):
    """Counts over the life of the job."""

    trained_trajectories: Count = 0
    """Responses trained on."""
    discarded_trajectories: Count = 0
    """Responses that ended otherwise."""
    aborted_samples: Count = 0
    """Samples dropped because a reward failed or an engine died."""
    filtered_groups: Count = 0
    """Groups that were dropped: a reward or an environment kept failing, or (dynamic sampling) rewards were equal."""
    unscored_groups: Count = 0
    """Of these, groups in which a reward could not score a response, or kept failing."""
    environment_failed_groups: Count = 0
    """Of these, groups in which the environment of an episode kept failing: its runner, its tools or the gateway."""
    requeued_prompts: Count = 0
    """Prompts that lost the race of a short round and were queued for a long one."""
    skipped_prompts: Count = 0
    """Records of the prompt source that were skipped (`data.onInvalidRecord: Skip`) or too long."""
    tokens: Count = 0
    """Response tokens generated."""
    discarded_tokens: Count = 0
    """Tokens of responses that were not trained on."""
    lost_version_tokens: Count = 0
    """Cost of abandoned weights: tokens of groups that were drawn again because no replica held their weights any more,
    and of rounds that were undone because the trainer returned to a checkpoint."""
    coordinator_restarts: Count = 0
    """Times that a coordinator resumed the job from its store."""


class CheckpointStatus(StatusModel):
    """The newest complete checkpoint."""

    round: Count
    """Round after which it was written."""
    name: Name
    """Its folder on the checkpoint volume."""


class BestModelStatus(StatusModel):
    """The exported model of the best evaluation."""

    round: Count
    """Rounds or updates that its weights have."""
    path: Annotated[str, Field(max_length=1024)]
    """Its folder."""


class RuntimeStatus(StatusModel):
    """The coordinator's report; it alone writes this part."""

    term: Count = 0
    """The coordinator's term (transitions of the job's Lease). A coordinator with a lower term is fenced."""
    applied: Count | None = None
    """Revision of the target that is in force."""
    applied_round: Count | None = None
    """Number of finished rounds when this coordinator first applied it."""
    drained: tuple[Annotated[str, Field(max_length=63)], ...] = Field(default=(), max_length=1024)
    """Machines that hold nothing any more and may be deleted."""
    event: Count = 0
    """Rises at boundaries, failures and acknowledgements: a change wakes the operator. Progress does not."""
    round: Count = 0
    """Rounds (OnPolicy) or updates (Asynchronous) done."""
    rounds: Count | None = None
    """Rounds of the job."""
    kind: RoundKind | None = None
    """Kind of the present round: Plain, Short or Long."""
    plan: Annotated[str | None, Field(max_length=64)] = None
    """Plan of the present round."""
    plan_reason: Sentence | None = None
    """Reason, where the job chose the plan (Auto)."""
    stage: Annotated[str | None, Field(max_length=64)] = None
    """Starting, Generating, Training, Publishing, Checkpointing, Draining, Suspended or Finished."""
    progress: Annotated[float | None, Field(ge=0, le=1)] = None
    """Share of the round's responses that are finished."""
    reward: float | None = None
    """Mean reward of the last round."""
    reward_first: float | None = None
    """Mean reward over the first fifth of the rounds done."""
    reward_last: float | None = None
    """Mean reward over the last fifth of the rounds done."""
    tokens_per_second: Annotated[float | None, Field(ge=0)] = None
    """Response tokens generated per second in the last round."""
    preemptions: Count | None = None
    """Requests preempted in the last round."""
    kv_cache_use: Annotated[float | None, Field(ge=0, le=1)] = None
    """Highest share of KV cache in use on any replica in the last round."""
    weight_version: Count | None = None
    """The newest version published. It is never used twice, not even after a rewind."""
    staleness: Annotated[float | None, Field(ge=0)] = None
    """Mean number of trainer steps between a trajectory's weights and its use."""
    max_staleness: Count | None = None
    """The largest such number in the last round."""
    buffer: Count | None = None
    """Groups that are ready for training. Asynchronous."""
    in_flight: Count | None = None
    """Groups that are generated, or wait for their rewards. Asynchronous."""
    generating: tuple[Annotated[str, Field(max_length=63)], ...] = Field(default=(), max_length=1024)
    """Rollout machines whose engines have generated tokens since they last joined."""
    deferred_prompts: Count | None = None
    """Prompts that wait for a long round (tail batching)."""
    suspects: tuple[Suspect, ...] = Field(default=(), max_length=1024)
    """Suspected machines."""
    relay: RelayTopology | None = None
    """The present chain."""
    last_round: RoundReport | None = None
    """Metrics of the last finished round."""
    evaluations: Annotated[tuple[EvaluationReport, ...], Field(max_length=8, json_schema_extra=map_by("name"))] = ()
    """Results of the evaluations, by name."""
    totals: RuntimeTotals | None = None
    """Counts over the life of the job."""
    checkpoint: CheckpointStatus | None = None
    """The newest complete checkpoint."""
    model_path: Annotated[str | None, Field(max_length=1024)] = None
    """Folder of the exported final model."""
    best_model: BestModelStatus | None = None
    """The exported model of the best evaluation (checkpoint.keepBest)."""
    warnings: tuple[StatusWarning, ...] = Field(default=(), max_length=16)
    """Conditions that need a person. Empty when there is none."""
    finished: Finished | None = None
    """Set once, when the run has ended."""
