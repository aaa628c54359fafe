"""Stopwatch: times the parts of a round or an update."""

from __future__ import annotations

from collections.abc import Callable


class Stopwatch:
    """Marks on the clock that it is given: `start`, then one at the end of each part."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._marks: list[float] = []

    def start(self) -> None:
        """Start the first part."""
        self._marks = [self._clock()]

    def _mark(self) -> None:
        self._marks.append(self._clock())

    def exclude(self, seconds: float) -> None:
        """Leave out a pause since the last mark: it belongs to no part."""
        self._marks = [mark + seconds for mark in self._marks]

    def part(self, index: int) -> float:
        """Return the seconds of a part; the first is 0."""
        return round(self._marks[index + 1] - self._marks[index], 3)

    @property
    def total(self) -> float:
        """Seconds from the start to the last mark."""
        return round(self._marks[-1] - self._marks[0], 3)

    @property
    def span(self) -> tuple[float, float]:
        """The times of the start and of the last mark."""
        return self._marks[0], self._marks[-1]
