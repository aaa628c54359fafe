"""Target: what the operator asks of the coordinator from the next boundary on."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rljob_api.fields import Count, StatusModel


class TargetPhase(StrEnum):
    """The command to the coordinator: train on the target's machines, or checkpoint and stop.

    In both phases, a machine in use that is not in the target is drained and reported in `runtime.drained`.
    """

    RUN = "Run"
    SUSPEND = "Suspend"


class TargetTensorParallel(StatusModel):
    """Tensor parallel sizes of the rollout replicas."""

    short: Annotated[int, Field(ge=1)] = 1
    """In short rounds, whose memory pressure is higher."""
    long: Annotated[int, Field(ge=1)] = 1
    """In long rounds, plain rounds and asynchronous generation."""


class Target(StatusModel):
    """The state that the coordinator must reach at the next boundary. It answers with `runtime.applied`."""

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
