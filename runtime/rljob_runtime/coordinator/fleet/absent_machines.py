"""Absent machines: rollout machines that fail to join, reported as one problem in the job's status."""

from __future__ import annotations

from rljob_api.status import StatusWarning
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.protocols import PeerError

PROBLEM = "MachinesNotJoined"


class AbsentMachines:
    """Machines that have failed to join at least `tries` times in a row."""

    def __init__(self, tries: int, reporter: Reporter) -> None:
        self._tries = tries
        self._reporter = reporter
        self._absent: dict[str, str] = {}

    def record_failure(self, machine: str, failures: int, error: PeerError) -> None:
        """Record that a machine failed to join for the `failures`-th time in a row."""
        if failures >= self._tries:
            self._absent[machine] = str(error)
            self._report()

    def clear(self, machine: str) -> None:
        """Forget a machine that has joined or is no member any more."""
        if self._absent.pop(machine, None) is not None:
            self._report()

    def _report(self) -> None:
        message = "; ".join(f"{machine} does not join: {why}" for machine, why in sorted(self._absent.items()))
        self._reporter.problem(PROBLEM, StatusWarning(reason=PROBLEM, message=message[:2048]) if message else None)
