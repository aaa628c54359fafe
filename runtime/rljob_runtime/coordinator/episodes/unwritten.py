"""Unwritten changes: attempts that begin or end, and that a read of the store may show otherwise.

The journal writes after the book has decided, and a read does not wait for it. So a read may find an attempt open that
has ended, and an attempt that begins before the book knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rljob_runtime.coordinator.store.tables.turns import KeptEpisode
from rljob_runtime.protocols.trajectory import TrajectoryKey


class UnwrittenChanges:
    """The changes of a book that its journal has not written, and what reads that are under way miss of them."""

    def __init__(self) -> None:
        self._ending: set[int] = set()
        self._beginning: set[TrajectoryKey] = set()
        self._missed: dict[object, set[int]] = {}
        """By read: numbers of attempts that had ended when it began, or have since."""

    def end(self, number: int) -> None:
        """Note that an attempt has ended."""
        self._ending.add(number)
        for missed in self._missed.values():
            missed.add(number)

    def ended(self, number: int) -> None:
        """Note that the store has the end of an attempt."""
        self._ending.discard(number)

    def begin(self, keys: Iterable[TrajectoryKey]) -> None:
        """Note that attempts of these responses begin."""
        self._beginning.update(keys)

    def begun(self, keys: Iterable[TrajectoryKey]) -> None:
        """Note that the store has these attempts, and the book knows them."""
        self._beginning.difference_update(keys)

    @contextmanager
    def reading(self) -> Iterator[Callable[[KeptEpisode], bool]]:
        """Surround a read. Yields whether an attempt that it found is outdated: it has ended, or begins by itself."""
        read, missed = object(), set(self._ending)
        self._missed[read] = missed
        try:
            yield lambda kept: kept.key in self._beginning or (kept.end is None and kept.number in missed)
        finally:
            del self._missed[read]
