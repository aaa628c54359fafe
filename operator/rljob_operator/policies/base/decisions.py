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
    """How long the pod may take to end; 0: without the kubelet's word, for nobody may be there to give it. None: as
    its manifest says."""

    @property
    def force(self) -> bool:
        """Whether the pod is gone at once, whatever still runs."""
        return self.grace_seconds == 0


@dataclass(frozen=True)
class Event:
    """One line in `kubectl describe`. Texts are stable, so that repetitions are counted instead of listed."""

    kind: str
    reason: str
    message: str


@dataclass(frozen=True)
class JobOutcome:
    """The job is over."""

    outcome: FinishedOutcome
    reason: str
    message: str

    @property
    def failed(self) -> bool:
        return self.outcome is FinishedOutcome.FAILED
