"""Members: the pods of a job, by machine and by role."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.fields import Count, StatusModel
from rljob_api.status.planner_memory import RunnerPool


class Role(StrEnum):
    """Role of a machine."""

    COORDINATOR = "Coordinator"
    TRAINER = "Trainer"
    ROLLOUT = "Rollout"


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


class EnvironmentStatus(StatusModel):
    """The runners of one environment."""

    name: Annotated[str, Field(max_length=63)]
    """Name of the environment."""
    runners: Count = 0
    """Desired number of pods: none while the job is suspended, waits for quota, or has ended."""
    ready: Count = 0
    """Number of ready pods. With reset Pod, one that is replaced counts, and a new one for its first minute."""
    pool: RunnerPool | None = None
    """Memory of the chosen number; only where minRunners is below maxRunners."""


class CoordinatorStatus(StatusModel):
    """The operator's view of the coordinator."""

    ready: bool = False
    """Whether its pod is ready."""
    address: Annotated[str | None, Field(max_length=253)] = None
    """Address for workers."""
    restarts: Count = 0
    """Coordinator pods that were replaced."""
