"""Rollout machines that do not come up, and why: one problem in the job's status."""

from __future__ import annotations

from rljob_api.status import StatusWarning
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import PeerError

PROBLEM = "MachinesNotJoined"


class AbsentMachines:
    """`tries`: so often in a row a machine may fail to join before people hear of it."""

    def __init__(self, tries: int, reporter: Reporter) -> None:
        self._tries = tries
        self._reporter = reporter
        self._absent: dict[str, str] = {}

    def note(self, machine: str, failures: int, error: PeerError) -> None:
        """It failed to join, so often in a row."""
        if failures >= self._tries:
            self._absent[machine] = str(error)
            self._tell()

    def over(self, machine: str) -> None:
        """It has joined, or is asked for no more."""
        if self._absent.pop(machine, None) is not None:
            self._tell()

    def _tell(self) -> None:
        told = "; ".join(f"{machine} does not come up: {why}" for machine, why in sorted(self._absent.items()))
        self._reporter.problem(PROBLEM, StatusWarning(reason=PROBLEM, message=told[:2048]) if told else None)
