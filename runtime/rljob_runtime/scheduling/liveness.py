"""When a process that answers is no good all the same: a replica that makes no progress, a machine that fails again
soon after it was restarted in place."""

from __future__ import annotations


class Progress:
    """Of one replica: it stalls when it has work and does nothing for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._done = -1
        self._since = 0.0

    def stalled(self, busy: bool, done: int, now: float) -> bool:
        """`busy`: whether it holds requests. `done`: a count that grows with its work.

        >>> progress = Progress(10.0)
        >>> [progress.stalled(True, done, now) for done, now in [(5, 0.0), (5, 9.0), (6, 11.0), (6, 20.0), (6, 21.0)]]
        [False, False, False, False, True]
        """
        if not busy or done != self._done:
            self._done, self._since = done, now
        return now - self._since >= self._seconds


class Relapses:
    """Of all machines: whether the accelerators of one have failed before, within so many `seconds`. Another
    incarnation has others."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._failed: dict[tuple[str, int], float] = {}

    def note(self, machine: str, incarnation: int, now: float) -> bool:
        """It has failed now. True if it had so shortly before.

        >>> relapses = Relapses(600.0)
        >>> [relapses.note("a", 1, 0.0), relapses.note("a", 2, 5.0), relapses.note("a", 2, 605.0)]
        [False, False, True]
        >>> relapses.note("a", 2, 1206.0)
        False
        """
        before = self._failed.get((machine, incarnation))
        self._failed[machine, incarnation] = now
        return before is not None and now - before <= self._seconds
