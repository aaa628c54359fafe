"""Decisions: the values that policies return and `plan` executes."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.status import FinishedOutcome, Role
from rljob_operator.policies.base.observation import Pod

NORMAL, WARNING = "Normal", "Warning"


@dataclass(frozen=True)
class NewPod:
    """A pod to create."""

    machine: str
    role: Role
    incarnation: int


@dataclass(frozen=True)
class Removal:
    """A pod to delete, and why."""

    pod: Pod
    reason: str
    grace_seconds: int | None = None
    """Seconds that the pod may take to end. 0: delete it without waiting for the kubelet, which may be gone. None: as
    its manifest says."""

    @property
    def force(self) -> bool:
        """Tell whether the pod is deleted immediately, whatever still runs."""
        return self.grace_seconds == 0


@dataclass(frozen=True)
class Event:
    """One line in `kubectl describe`. Texts are stable, so that repetitions are counted and not listed."""

    kind: str
    reason: str
    message: str


@dataclass(frozen=True)
class JobOutcome:
    """The end of a job."""

    outcome: FinishedOutcome
    reason: str
    message: str

    @property
    def failed(self) -> bool:
        return self.outcome is FinishedOutcome.FAILED
