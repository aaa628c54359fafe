"""Process restarts: when a process that died is started again, and when its deaths end the run."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_runtime.scheduling.backoff import Backoff

STEADY_SECONDS = 60.0
"""A process that lived for so long had started well: its death is the first of a new count."""


@dataclass
class ProcessRestarts:
    """The deaths of one process. `total`: all its restarts; `failures`: deaths of processes that did not live long."""

    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 2.0, 15.0, limit=6))
    failures: int = 0
    total: int = 0

    def delay(self, lived_seconds: float) -> float | None:
        """Return the seconds until the next start after a death; None if there is none.

        >>> [ProcessRestarts(failures=failures).delay(1.0) for failures in (0, 4, 5)]
        [0.5, 8.0, None]
        """
        self.failures = 1 if lived_seconds >= STEADY_SECONDS else self.failures + 1
        delay = self.backoff.delay(self.failures)
        self.total += delay is not None
        return delay
