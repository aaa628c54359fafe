"""Stall detection: processes that answer but do not work.

Three kinds: a replica without progress, a machine that fails again soon after an in-place restart, and a relay that
does not pass on its versions.
"""

from __future__ import annotations


class ProgressMonitor:
    """Detector for one replica that has work but makes no progress for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._done = -1
        self._since = 0.0

    def stalled(self, busy: bool, done: int, now: float) -> bool:
        """Check for a stall. `busy`: it holds requests or owes responses. `done`: a count that rises with its work.

        >>> progress = ProgressMonitor(10.0)
        >>> [progress.stalled(True, done, now) for done, now in [(5, 0.0), (5, 9.0), (6, 11.0), (6, 20.0), (6, 21.0)]]
        [False, False, False, False, True]
        """
        if not busy or done != self._done:
            self._done, self._since = done, now
        return now - self._since >= self._seconds


class RestartHistory:
    """Restarts of all machines: detects accelerators that fail twice within `seconds`. Incarnations are separate."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._failed: dict[tuple[str, int], float] = {}

    def record(self, machine: str, incarnation: int, now: float) -> bool:
        """Record a failure. Returns True if the same incarnation failed shortly before.

        >>> history = RestartHistory(600.0)
        >>> [history.record("a", 1, 0.0), history.record("a", 2, 5.0), history.record("a", 2, 605.0)]
        [False, False, True]
        >>> history.record("a", 2, 1206.0)
        False
        """
        before = self._failed.get((machine, incarnation))
        self._failed[machine, incarnation] = now
        return before is not None and now - before <= self._seconds


class StalledLinks:
    """Stalled links of all relays: decides which end of a link is at fault."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._behind: dict[str, dict[tuple[str, int], float]] = {}

    def record(self, feeder: str, machine: str, incarnation: int, now: float) -> bool:
        """Record that a machine waits for its feeder without progress. Returns True if the feeder is at fault.

        It is if another machine or another pod also waited for it without progress within `seconds`.

        >>> links = StalledLinks(600.0)
        >>> [links.record("a", "b", 1, 0.0), links.record("a", "b", 1, 10.0), links.record("a", "c", 1, 20.0)]
        [False, False, True]
        >>> links.record("x", "b", 1, 30.0), links.record("a", "d", 1, 700.0)
        (False, False)
        """
        behind = self._behind.setdefault(feeder, {})
        behind[machine, incarnation] = now
        return any(now - at <= self._seconds for one, at in behind.items() if one != (machine, incarnation))
