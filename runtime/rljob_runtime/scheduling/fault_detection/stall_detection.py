"""When a process that answers is no good all the same: a replica that makes no progress, a machine that fails again
soon after it was restarted in place, a relay that does not pass on what it holds."""

from __future__ import annotations


class ProgressMonitor:
    """Of one replica: it stalls when it has work and does nothing for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._done = -1
        self._since = 0.0

    def stalled(self, busy: bool, done: int, now: float) -> bool:
        """`busy`: whether it holds requests, or owes responses. `done`: a count that grows with its work.

        >>> progress = ProgressMonitor(10.0)
        >>> [progress.stalled(True, done, now) for done, now in [(5, 0.0), (5, 9.0), (6, 11.0), (6, 20.0), (6, 21.0)]]
        [False, False, False, False, True]
        """
        if not busy or done != self._done:
            self._done, self._since = done, now
        return now - self._since >= self._seconds


class RestartHistory:
    """Of all machines: whether the accelerators of one have failed before, within so many `seconds`. Another
    incarnation has others."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._failed: dict[tuple[str, int], float] = {}

    def record(self, machine: str, incarnation: int, now: float) -> bool:
        """It has failed now. True if it had so shortly before.

        >>> relapses = RestartHistory(600.0)
        >>> [relapses.note("a", 1, 0.0), relapses.note("a", 2, 5.0), relapses.note("a", 2, 605.0)]
        [False, False, True]
        >>> relapses.note("a", 2, 1206.0)
        False
        """
        before = self._failed.get((machine, incarnation))
        self._failed[machine, incarnation] = now
        return before is not None and now - before <= self._seconds


class StalledLinks:
    """Of all relays: which of two is at fault where weights do not get from the one to the other."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._behind: dict[str, dict[tuple[str, int], float]] = {}

    def record(self, feeder: str, machine: str, incarnation: int, now: float) -> bool:
        """The machine waits for its feeder in vain now. True if that is the feeder's fault: within so many `seconds`
        another machine, or another pod, waited for it in vain too.

        >>> still = StalledLinks(600.0)
        >>> [still.note("a", "b", 1, 0.0), still.note("a", "b", 1, 10.0), still.note("a", "c", 1, 20.0)]
        [False, False, True]
        >>> still.note("x", "b", 1, 30.0), still.note("a", "d", 1, 700.0)
        (False, False)
        """
        behind = self._behind.setdefault(feeder, {})
        behind[machine, incarnation] = now
        return any(now - at <= self._seconds for one, at in behind.items() if one != (machine, incarnation))
