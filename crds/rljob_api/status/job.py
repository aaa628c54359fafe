"""Job status: the complete `status`. The operator applies all but `runtime`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.constants import MAX_SPEC_LENGTH
from rljob_api.fields import Count, Sentence, StatusModel, Timestamp, map_by
from rljob_api.status.members import CoordinatorStatus, EnvironmentStatus, MachineGroup, Member, RolloutStatus
from rljob_api.status.planner_memory import ElasticityHistory, ParallelismHistory
from rljob_api.status.replacements import Replacements
from rljob_api.status.runtime import RelayTopology, RuntimeStatus
from rljob_api.status.target import Target


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
    # Atomic, both: the lists have one writer.
    environments: tuple[EnvironmentStatus, ...] = Field(default=(), max_length=16)
    """Runners of each environment."""
    members: tuple[Member, ...] = Field(default=(), max_length=2048)
    """Pods that are members."""
    incarnations: dict[str, int] = Field(default_factory=dict, max_length=2048)
    """Highest incarnation of each machine, even while it has no pod."""
    target: Target | None = None
    """The command to the coordinator."""
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
