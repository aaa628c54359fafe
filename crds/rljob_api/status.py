"""Status: the channel between operator and runtime.

The coordinator applies `runtime`, and the operator everything else (server-side apply, two field managers). Each reads
the other's part. The server sets no default in it, because a default has no owner.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.constants import MAX_SPEC_LENGTH
from rljob_api.fields import Count, Name, Sentence, StatusModel, Timestamp, map_by
from rljob_api.status_runtime import (
    BestModelStatus,
    CheckpointStatus,
    EvaluationPoint,
    EvaluationReport,
    Finished,
    FinishedOutcome,
    LayoutForecast,
    LoanReport,
    LoanState,
    MachineForecast,
    RelayTopology,
    RoundKind,
    RoundReport,
    RuleReward,
    RuntimeStatus,
    RuntimeTotals,
    SourceReport,
    StatusWarning,
    Suspect,
)
from rljob_api.status_switches import LayoutSwitchesReport, LayoutSwitchReport, SwitchesState

__all__ = [
    "Accepted",
    "AvoidedNode",
    "BackOff",
    "BestModelStatus",
    "CheckpointStatus",
    "Condition",
    "ConditionStatus",
    "CoordinatorStatus",
    "ElasticityHistory",
    "EvaluationPoint",
    "EvaluationReport",
    "Finished",
    "FinishedOutcome",
    "LayoutForecast",
    "LayoutSwitchReport",
    "LayoutSwitchesReport",
    "LoanReport",
    "LoanState",
    "MachineForecast",
    "MachineGroup",
    "Member",
    "NotReadyNode",
    "ParallelismHistory",
    "Phase",
    "PreemptionHistory",
    "RLJobStatus",
    "RelayTopology",
    "ReplacementPause",
    "Replacements",
    "Role",
    "RolloutStatus",
    "RoundKind",
    "RoundReport",
    "RuleReward",
    "RuntimeStatus",
    "RuntimeTotals",
    "SourceReport",
    "StatusWarning",
    "Suspect",
    "SwitchesState",
    "Target",
    "TargetPhase",
    "TargetTensorParallel",
]


class Phase(StrEnum):
    """The state in one word, derived from the conditions, for people only."""

    PENDING = "Pending"
    STARTING = "Starting"
    STALLED = "Stalled"
    RUNNING = "Running"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionStatus(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Role(StrEnum):
    """Role of a machine."""

    COORDINATOR = "Coordinator"
    TRAINER = "Trainer"
    ROLLOUT = "Rollout"


class TargetPhase(StrEnum):
    """What the coordinator must do: train on the target's machines, or checkpoint and stop.

    In both phases, a machine in use that is not in the target is drained and reported in `runtime.drained`.
    """

    RUN = "Run"
    SUSPEND = "Suspend"


class Condition(StatusModel):
    """One observation about the job, as Kubernetes writes conditions."""

    type: Annotated[str, Field(max_length=64)]
    """Ready, Reconciling, Stalled, RelayReady, Degraded, CheckpointDurable, Suspended, Admitted, Complete or Failed."""
    status: ConditionStatus
    """True, False or Unknown."""
    observed_generation: Count | None = None
    """Generation of the spec that the condition is about."""
    last_transition_time: Timestamp | None = None
    """When the status last changed."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """One word, for programs."""
    message: Sentence = ""
    """A sentence, for people."""


class Accepted(StatusModel):
    """The spec that the job runs on: the last one that the operator accepted."""

    uid: Annotated[str, Field(max_length=63)] = ""
    """Uid of the RLJob for which it was accepted. A status that was copied from another cluster's job does not
    count."""
    # A text: an object would repeat the schema of the spec.
    spec: Annotated[str, Field(max_length=MAX_SPEC_LENGTH)] = ""
    """The complete spec as JSON."""


class Member(StatusModel):
    """A pod that is a member of the job."""

    machine: Annotated[str, Field(max_length=63)]
    """Its machine, e.g. rollout-0."""
    incarnation: Count
    """Number of the pod of that machine. It rises with every replacement."""
    pod_uid: Annotated[str | None, Field(alias="podUID", max_length=63)] = None
    """The pod's uid: a name may be used again, a uid never."""
    ip: Annotated[str | None, Field(max_length=45)] = None
    """The pod's address, once it has one."""
    role: Role
    """Coordinator, Trainer or Rollout."""
    leaving: bool | None = None
    """Whether another client has deleted the pod. It is a member until it has handed over its state."""


class TargetTensorParallel(StatusModel):
    """Tensor parallel sizes of the rollout replicas."""

    short: Annotated[int, Field(ge=1)] = 1
    """In short rounds, whose memory pressure is higher."""
    long: Annotated[int, Field(ge=1)] = 1
    """In long rounds, plain rounds and asynchronous generation."""


class Target(StatusModel):
    """What the coordinator must do from the next boundary on. It answers with `runtime.applied`."""

    revision: Count = 0
    """Rises with every change of the target."""
    machines: tuple[Annotated[str, Field(max_length=63)], ...] = Field(default=(), max_length=1024)
    """Rollout machines to use. A machine in use that is absent here must be drained."""
    tensor_parallel: TargetTensorParallel = TargetTensorParallel()
    """Accelerators per replica, by kind of round."""
    phase: TargetPhase = TargetPhase.RUN
    """Run or Suspend."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """Reason of the last change."""


class PreemptionHistory(StatusModel):
    """The parallelism planner's memory of the rounds of one kind."""

    preemptions: Count | None = None
    """Preemptions of the round counted last."""
    quiet: Count = 0
    """Rounds in a row without preemptions, since the last decision about such rounds."""
    quiet_tokens: Count | None = None
    """Most tokens of one of them."""
    stepped_down: bool = False
    """Whether a step down led to the present size."""
    floor: Annotated[int | None, Field(ge=1)] = None
    """Size below which a step brought preemptions back, or engines did not start."""
    floor_tokens: Count | None = None
    """Tokens of that round: the floor holds until rounds are clearly smaller."""
    ceiling: Annotated[int | None, Field(ge=1)] = None
    """Size in which engines did not start."""
    ceiling_round: Count | None = None
    """Round that showed it. The size is tried again after a while."""


class ParallelismHistory(StatusModel):
    """The parallelism planner's memory, so that a restarted operator decides the same."""

    round: Count = 0
    """Last round that it has counted."""
    start: Annotated[int, Field(ge=1)]
    """The spec's tensorParallelSize. Another one resets the planner."""
    machines: Count
    """Rollout machines of the remembered rounds."""
    heard: Count | None = None
    """Last round when the coordinator first reported the present sizes as applied. Later rounds ran with them."""
    short: PreemptionHistory = PreemptionHistory()
    """Short rounds."""
    long: PreemptionHistory = PreemptionHistory()
    """Long and plain rounds."""


class ElasticityHistory(StatusModel):
    """The autoscaler's memory, where the operator chooses the number of rollout machines."""

    machines: Annotated[int, Field(ge=1)]
    """The number chosen last."""
    start: Annotated[int, Field(ge=1)]
    """The spec's `rollout.machines`. Another value resets the number to it."""
    round: Count = 0
    """Last update, or round, that it has counted."""
    starving: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """Share of each of the last updates that the trainer waited, since the number changed."""
    flooding: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """Share of each of them for which replicas were paused because the buffer was full."""
    brought: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """Mode OnPolicy: what the last machine contributed to each of the last rounds, relative to its share of the
    work."""
    would_bring: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """What one machine more would have contributed to each of them, relative to its share."""
    changed: Timestamp | None = None
    """When the number last changed."""
    direction: Annotated[int, Field(ge=-1, le=1)] = 0
    """Last step of the operator: 1 for one machine more, -1 for one less."""


class MachineGroup(StatusModel):
    """Pods of one role."""

    desired: Count = 0
    """Desired number."""
    ready: Count = 0
    """Number of ready ones."""
    restarts: Count = 0
    """Pods of this role that were replaced."""


class RolloutStatus(MachineGroup):
    """The rollout machines."""

    updated: Count | None = None
    """Machines whose pod has the shape of the present spec."""
    tensor_parallel_size: Annotated[int | None, Field(ge=1)] = None
    """Accelerators per replica as last applied."""
    selector: Annotated[str | None, Field(max_length=512)] = None
    """Label selector of the rollout pods, for the scale subresource."""


class CoordinatorStatus(StatusModel):
    """The operator's view of the coordinator."""

    ready: bool = False
    """Whether its pod is ready."""
    address: Annotated[str | None, Field(max_length=253)] = None
    """Address for workers."""
    restarts: Count = 0
    """Coordinator pods that were replaced."""


class BackOff(StatusModel):
    """Failures in a row of one machine, and when it may be replaced.

    So a restarted operator waits equally long.
    """

    failures: Count = 0
    """Failures in a row."""
    until: Timestamp | None = None
    """No replacement before this time."""
    last_failure_time: Timestamp | None = None
    """Time of the last failure. A machine that is stable for long enough starts again at zero."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """Reason of the last failure."""
    doubted: bool | None = None
    """True: its pod looked alive to Kubernetes."""
    unsettled: bool | None = None
    """True: whether it counts against the budget depends on its node, and is decided within a minute."""
    node: Name | None = None
    """Node of that pod."""


class AvoidedNode(StatusModel):
    """A node on which no pod of the job is placed for a while."""

    name: Name
    """The node."""
    until: Timestamp
    """End of the avoidance."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """Failure on the node."""


class NotReadyNode(StatusModel):
    """A node of the job that is not ready, or deleted."""

    name: Name
    """The node."""
    since: Timestamp
    """Since when the operator has observed it. Its machines are replaced nodeFailure.graceSeconds later."""


class ReplacementPause(StatusModel):
    """A hold of replacement after a mass failure: the network is the likely cause."""

    since: Timestamp
    """Begin of the hold."""
    until: Timestamp
    """When the next machine is replaced, unless the machines return."""


class Replacements(StatusModel):
    """Pods replaced because they failed: budgets and memory."""

    total: Count = 0
    """Replacements since the job started."""
    by_machine: dict[str, int] = Field(default_factory=dict, max_length=2048)
    """Replacements of each machine that count against its budget."""
    backoff: dict[str, BackOff] = Field(default_factory=dict, max_length=2048)
    """Machines that failed recently."""
    avoided_nodes: tuple[AvoidedNode, ...] = Field(default=(), max_length=256)
    """Nodes that the job avoids."""
    not_ready_nodes: tuple[NotReadyNode, ...] = Field(default=(), max_length=2048)
    """Nodes of the job's pods that are not ready."""
    paused_since: Timestamp | None = None
    """Begin of a hold of replacement after a mass failure. Absent without one."""
    paused_until: Timestamp | None = None
    """When the next machine is replaced, unless the machines return."""

    @property
    def pause(self) -> ReplacementPause | None:
        """Return the hold of replacement."""
        if self.paused_since is None or self.paused_until is None:
            return None
        return ReplacementPause(since=self.paused_since, until=self.paused_until)


class RLJobStatus(StatusModel):
    """Most recently observed state of the job."""

    observed_generation: Count | None = None
    """Generation of the spec that the operator last acted on."""
    phase: Phase | None = None
    """The state in one word, for people."""
    conditions: tuple[Condition, ...] = Field(default=(), max_length=16, json_schema_extra=map_by("type"))
    """Ready, Reconciling, Stalled, RelayReady, Degraded, CheckpointDurable, Suspended, Complete, Failed; Admitted for
    jobs with a queue."""
    accepted: Accepted | None = None
    """The spec that the job runs on. It differs from `spec` while an edit is refused (Stalled=InvalidSpec)."""
    coordinator: CoordinatorStatus | None = None
    """The coordinator's pod."""
    trainer: MachineGroup | None = None
    """The trainer's pods."""
    rollout: RolloutStatus | None = None
    """The rollout machines."""
    # Atomic: the list has one writer.
    members: tuple[Member, ...] = Field(default=(), max_length=2048)
    """Pods that are members."""
    incarnations: dict[str, int] = Field(default_factory=dict, max_length=2048)
    """Highest incarnation of each machine, even while it has no pod."""
    target: Target | None = None
    """What the coordinator must do."""
    parallelism: ParallelismHistory | None = None
    """Memory of the parallelism planner; only where allowedTensorParallelSizes gives a choice."""
    elasticity: ElasticityHistory | None = None
    """Memory of the autoscaler; only where minMachines is below maxMachines."""
    relay: RelayTopology | None = None
    """Order of the weight chain."""
    replacements: Replacements | None = None
    """Replaced pods, budgets and backoff."""
    start_time: Timestamp | None = None
    """When the operator first acted on the job."""
    active_since: Timestamp | None = None
    """Start of the present pods, from which deadlines count. Absent while suspended."""
    first_ready_time: Timestamp | None = None
    """When all present pods were first ready. It ends the startup deadline."""
    drain_since: Timestamp | None = None
    """Since when the operator waits for machines to be drained."""
    completion_time: Timestamp | None = None
    """When the job completed or failed. The time to live counts from it."""
    runtime: RuntimeStatus | None = None
    """The coordinator's report; it alone writes here."""

    def condition(self, type_: str) -> Condition | None:
        """Return the condition of a type; None if it is absent."""
        return next((condition for condition in self.conditions if condition.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """Tell whether the condition of a type is True."""
        condition = self.condition(type_)
        return condition is not None and condition.status is ConditionStatus.TRUE

    @property
    def ended(self) -> bool:
        """Tell whether the job is Complete or Failed, which is final."""
        return self.is_true("Complete") or self.is_true("Failed")
