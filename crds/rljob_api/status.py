"""The status: the wire between the operator and the runtime.

The operator applies everything but `runtime`; the coordinator applies `runtime` alone (server-side apply, two field
managers). Each reads what the other wrote. No field is defaulted by the server, for a default has no owner.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.constants import MAX_SPEC_LENGTH
from rljob_api.fields import Count, Name, Sentence, StatusModel, Timestamp, map_by
from rljob_api.status_runtime import (
    CheckpointStatus,
    Finished,
    FinishedOutcome,
    LayoutForecast,
    LoanReport,
    LoanState,
    MachineForecast,
    RelayTopology,
    RoundKind,
    RoundReport,
    RuntimeStatus,
    RuntimeTotals,
    StatusWarning,
    Suspect,
)

__all__ = [
    "Accepted",
    "AvoidedNode",
    "BackOff",
    "CheckpointStatus",
    "Condition",
    "ConditionStatus",
    "CoordinatorStatus",
    "ElasticityHistory",
    "Finished",
    "FinishedOutcome",
    "LayoutForecast",
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
    "RuntimeStatus",
    "RuntimeTotals",
    "StatusWarning",
    "Suspect",
    "Target",
    "TargetPhase",
    "TargetTensorParallel",
]


class Phase(StrEnum):
    """The state in one word, derived from the conditions, for humans only."""

    PENDING = "Pending"
    STARTING = "Starting"
    STALLED = "Stalled"
    RUNNING = "Running"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Role(StrEnum):
    """What a machine is for."""

    COORDINATOR = "Coordinator"
    TRAINER = "Trainer"
    ROLLOUT = "Rollout"


class TargetPhase(StrEnum):
    """What the operator asks of the coordinator: train on the target's machines, or checkpoint and stop. To leave needs
    no phase: in both, a machine that is used and not in the target is emptied and reported in `runtime.drained`."""

    RUN = "Run"
    SUSPEND = "Suspend"


class Condition(StatusModel):
    """One observation about the job, as Kubernetes writes conditions."""

    type: Annotated[str, Field(max_length=64)]
    """Ready, Reconciling, Stalled, RelayReady, Degraded, CheckpointDurable, Suspended, Admitted, Complete or Failed."""
    status: ConditionStatus
    """True, False or Unknown."""
    observed_generation: Count | None = None
    """The generation of the spec that this speaks of."""
    last_transition_time: Timestamp | None = None
    """When the status last changed."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """One word for programs."""
    message: Sentence = ""
    """A sentence for people."""


class Accepted(StatusModel):
    """The spec that the job runs on: the last one that the operator accepted."""

    uid: Annotated[str, Field(max_length=63)] = ""
    """The RLJob for which it was accepted: a status that was copied from another cluster's job does not count."""
    # A text and not an object: its schema would be the spec's once more.
    spec: Annotated[str, Field(max_length=MAX_SPEC_LENGTH)] = ""
    """The whole spec as JSON."""


class Member(StatusModel):
    """A pod of the job that takes part."""

    machine: Annotated[str, Field(max_length=63)]
    """The machine it fills, e.g. rollout-0."""
    incarnation: Count
    """Which pod of that machine: rises with every replacement."""
    pod_uid: Annotated[str | None, Field(alias="podUID", max_length=63)] = None
    """The pod's uid: a name may come again, a uid never."""
    ip: Annotated[str | None, Field(max_length=45)] = None
    """The pod's address, once it has one."""
    role: Role
    """Coordinator, Trainer or Rollout."""
    leaving: bool | None = None
    """Whether somebody has asked the pod to go; it takes part until it has handed over what it holds."""


class TargetTensorParallel(StatusModel):
    """Tensor parallel sizes of the rollout replicas."""

    short: Annotated[int, Field(ge=1)] = 1
    """In short rounds, whose memory pressure is higher."""
    long: Annotated[int, Field(ge=1)] = 1
    """In long rounds, plain rounds and asynchronous generation."""


class Target(StatusModel):
    """What the operator asks of the coordinator, from the next boundary on. It answers by `runtime.applied`."""

    revision: Count = 0
    """Rises with every change of the target."""
    machines: tuple[Annotated[str, Field(max_length=63)], ...] = Field(default=(), max_length=1024)
    """The rollout machines to use; one that is used now and absent here is to be drained."""
    tensor_parallel: TargetTensorParallel = TargetTensorParallel()
    """Accelerators per replica, by kind of round."""
    phase: TargetPhase = TargetPhase.RUN
    """Run or Suspend."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """Why it is so."""


class PreemptionHistory(StatusModel):
    """What the parallelism planner remembers of the rounds of one kind."""

    preemptions: Count | None = None
    """In the round counted last."""
    quiet: Count = 0
    """Rounds in a row without preemptions, since the last decision over such."""
    quiet_tokens: Count | None = None
    """The most tokens that one of them generated."""
    stepped_down: bool = False
    """Whether a step down led to the present size."""
    floor: Annotated[int | None, Field(ge=1)] = None
    """A step below this size brought preemptions back, or engines did not start there."""
    floor_tokens: Count | None = None
    """Tokens of the round in which it did: the floor holds until rounds are clearly smaller."""
    ceiling: Annotated[int | None, Field(ge=1)] = None
    """Engines did not start in this size."""
    ceiling_round: Count | None = None
    """The round that showed it: the size is tried again after a while."""


class ParallelismHistory(StatusModel):
    """The parallelism planner's memory, kept here so that a restarted operator decides the same."""

    round: Count = 0
    """The last round that it has seen."""
    start: Annotated[int, Field(ge=1)]
    """The spec's tensorParallelSize: another one starts the planner anew."""
    machines: Count
    """Rollout machines of the rounds remembered."""
    heard: Count | None = None
    """The last round when the coordinator first said that the present sizes are in force: later ones ran under them."""
    short: PreemptionHistory = PreemptionHistory()
    """Short rounds."""
    long: PreemptionHistory = PreemptionHistory()
    """Long rounds and plain ones."""


class ElasticityHistory(StatusModel):
    """What is remembered of the number of rollout machines, where the operator chooses it."""

    machines: Annotated[int, Field(ge=1)]
    """The number chosen last."""
    start: Annotated[int, Field(ge=1)]
    """The spec's `rollout.machines`: another one starts anew from there."""
    round: Count = 0
    """The last update, or round, that it has seen."""
    starving: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """For how much of each of the last updates the trainer waited, since the number changed."""
    flooding: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """For how much of each of them replicas stood still because the buffer was full."""
    brought: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """Rounds of mode OnPolicy: what the last machine brought to each of the last ones, of its share of the work."""
    would_bring: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """What one machine more would have brought to each of them, of its share."""
    changed: Timestamp | None = None
    """When the number last changed."""
    direction: Annotated[int, Field(ge=-1, le=1)] = 0
    """The last step that the operator made: 1 for one machine more, -1 for one less."""


class MachineGroup(StatusModel):
    """Pods of one role."""

    desired: Count = 0
    """How many there should be."""
    ready: Count = 0
    """How many are ready."""
    restarts: Count = 0
    """Pods of this role that were replaced."""


class RolloutStatus(MachineGroup):
    """The rollout machines."""

    updated: Count | None = None
    """Machines whose pod has the shape that the spec now asks for."""
    tensor_parallel_size: Annotated[int | None, Field(ge=1)] = None
    """Accelerators per replica as last applied."""
    selector: Annotated[str | None, Field(max_length=512)] = None
    """Label selector of the rollout pods, for the scale subresource."""


class CoordinatorStatus(StatusModel):
    """The coordinator as the operator sees it."""

    ready: bool = False
    """Whether its pod is ready."""
    address: Annotated[str | None, Field(max_length=253)] = None
    """Where workers find it."""
    restarts: Count = 0
    """Coordinator pods that were replaced."""


class BackOff(StatusModel):
    """Failures in a row of one machine and when it may be filled again; kept here so that a restarted operator waits
    just as long."""

    failures: Count = 0
    """Failures in a row."""
    until: Timestamp | None = None
    """No replacement before this time."""
    last_failure_time: Timestamp | None = None
    """When it last failed: a machine stable for long enough since starts again at zero."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """Why it failed last."""
    doubted: bool | None = None
    """True: Kubernetes still believed in its pod then."""
    unsettled: bool | None = None
    """True: whether it counts against the budget depends on its node, and is known within a minute."""
    node: Name | None = None
    """Where that pod stood."""


class AvoidedNode(StatusModel):
    """A node on which no pod of the job is placed for a while."""

    name: Name
    """The node."""
    until: Timestamp
    """When it may be used again."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """What happened there."""


class NotReadyNode(StatusModel):
    """A node of the job's that is not ready, or gone."""

    name: Name
    """The node."""
    since: Timestamp
    """Since when the operator has seen it so: its machines are replaced nodeFailure.graceSeconds later."""


class ReplacementPause(StatusModel):
    """So many machines are believed dead at once that it is more likely the network: replacement waits."""

    since: Timestamp
    """When it began."""
    until: Timestamp
    """When the next machine is replaced, unless they come back."""


class Replacements(StatusModel):
    """Pods replaced because they failed: budgets and memory."""

    total: Count = 0
    """Replacements in the life of the job."""
    by_machine: dict[str, int] = Field(default_factory=dict, max_length=2048)
    """Replacements of each machine that count against its budget."""
    backoff: dict[str, BackOff] = Field(default_factory=dict, max_length=2048)
    """Machines that failed lately."""
    avoided_nodes: tuple[AvoidedNode, ...] = Field(default=(), max_length=256)
    """Nodes out of favour."""
    not_ready_nodes: tuple[NotReadyNode, ...] = Field(default=(), max_length=2048)
    """Nodes of the job's pods that are not ready."""
    paused_since: Timestamp | None = None
    """Since when replacement waits because too many machines are believed dead at once; absent when it does not."""
    paused_until: Timestamp | None = None
    """When the next machine is replaced, unless they come back."""

    @property
    def pause(self) -> ReplacementPause | None:
        """The pause that replacement waits for."""
        if self.paused_since is None or self.paused_until is None:
            return None
        return ReplacementPause(since=self.paused_since, until=self.paused_until)


class RLJobStatus(StatusModel):
    """Most recently observed state of the job."""

    observed_generation: Count | None = None
    """The generation of the spec that the operator last acted on."""
    phase: Phase | None = None
    """The state in one word, for humans."""
    conditions: tuple[Condition, ...] = Field(default=(), max_length=16, json_schema_extra=map_by("type"))
    """Ready, Reconciling, Stalled, RelayReady, Degraded, CheckpointDurable, Suspended, Complete, Failed; Admitted of
    jobs that ask Kueue."""
    accepted: Accepted | None = None
    """The spec that the job runs on. It stays behind `spec` while an edit of that is refused (Stalled=InvalidSpec)."""
    coordinator: CoordinatorStatus | None = None
    """The coordinator's pod."""
    trainer: MachineGroup | None = None
    """The trainer's pods."""
    rollout: RolloutStatus | None = None
    """The rollout machines."""
    # Atomic: the list has one writer.
    members: tuple[Member, ...] = Field(default=(), max_length=2048)
    """The pods that take part."""
    incarnations: dict[str, int] = Field(default_factory=dict, max_length=2048)
    """Highest incarnation ever given to each machine, remembered while no pod of it exists."""
    target: Target | None = None
    """What the operator asks of the coordinator."""
    parallelism: ParallelismHistory | None = None
    """What the planner of tensor parallel sizes remembers; only where allowedTensorParallelSizes gives it a choice."""
    elasticity: ElasticityHistory | None = None
    """What the choice of the number of rollout machines rests on; only where minMachines is below maxMachines."""
    relay: RelayTopology | None = None
    """The order of the weight chain."""
    replacements: Replacements | None = None
    """Failed pods replaced, budgets and back-off."""
    start_time: Timestamp | None = None
    """When the operator first acted on the job."""
    active_since: Timestamp | None = None
    """Start of the present run of pods: the deadlines count from here; absent while suspended."""
    first_ready_time: Timestamp | None = None
    """When all pods of the present run were first ready; ends the startup deadline."""
    drain_since: Timestamp | None = None
    """Since when the operator waits for machines to be drained."""
    completion_time: Timestamp | None = None
    """When the job completed or failed; the time to live counts from here."""
    runtime: RuntimeStatus | None = None
    """The coordinator's report; it alone writes here."""

    def condition(self, type_: str) -> Condition | None:
        """The condition of a type, if it is there."""
        return next((condition for condition in self.conditions if condition.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """Whether the condition of a type is there and True."""
        condition = self.condition(type_)
        return condition is not None and condition.status is ConditionStatus.TRUE

    @property
    def ended(self) -> bool:
        """Complete or Failed: terminal and sticky."""
        return self.is_true("Complete") or self.is_true("Failed")
