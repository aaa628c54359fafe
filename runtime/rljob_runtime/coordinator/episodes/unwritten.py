"""Unwritten changes: what the book has decided and a read of the store may show otherwise.

The journal writes after the book has decided, and a read does not wait for it. So a read may find an attempt open that
has ended, and an attempt that begins before the book knows it. A loop may drop a response while it is read or begun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rljob_runtime.coordinator.store.tables.turns import KeptEpisode
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey


@dataclass(eq=False)
class Pending:
    """Responses whose attempts are read or begin, and what happens meanwhile."""

    keys: frozenset[TrajectoryKey]
    known: set[TrajectoryKey]
    """Those that no loop has dropped since."""
    needed: set[TrajectoryKey]
    """Those of them whose open attempts no loop has cut since."""
    ended: set[int] = field(default_factory=set)
    """Numbers of attempts whose end the store lacked when the call began, or that ended since."""


class UnwrittenChanges:
    """The changes of a book that its journal has not written, and the calls that they concern."""

    def __init__(self) -> None:
        self._ending: set[int] = set()
        self._pending: set[Pending] = set()
        self._beginning: set[Pending] = set()
        """Those of them whose attempts begin."""

    def end(self, number: int) -> None:
        """Note that an attempt has ended."""
        self._ending.add(number)
        for one in self._pending:
            one.ended.add(number)

    def ended(self, number: int) -> None:
        """Note that the store has the end of an attempt."""
        self._ending.discard(number)

    def drop(self, prompts: Collection[PromptKey]) -> None:
        """Note that these prompts are forgotten."""
        self.cut(prompts)
        for one in self._pending:
            one.known -= {key for key in one.known if key.prompt in prompts}

    def cut(self, prompts: Collection[PromptKey]) -> None:
        """Note that open attempts of these prompts are not needed."""
        for one in self._pending:
            one.needed -= {key for key in one.needed if key.prompt in prompts}

    def begin(self, keys: Iterable[TrajectoryKey]) -> Pending:
        """Note that attempts of these responses begin."""
        made = self._watch(keys)
        self._beginning.add(made)
        return made

    def begun(self, begins: Pending) -> None:
        """Note that the store has these attempts."""
        self._pending.remove(begins)
        self._beginning.remove(begins)

    @contextmanager
    def reading(self, keys: Iterable[TrajectoryKey]) -> Iterator[Pending]:
        """Surround a read of these responses."""
        made = self._watch(keys)
        try:
            yield made
        finally:
            self._pending.remove(made)

    def is_outdated(self, kept: KeptEpisode, read: Pending) -> bool:
        """Return whether a read is outdated: the attempt has ended, or an attempt of its response is being begun."""
        return (kept.end is None and kept.number in read.ended) or any(kept.key in one.keys for one in self._beginning)

    def _watch(self, keys: Iterable[TrajectoryKey]) -> Pending:
        every = frozenset(keys)
        made = Pending(every, set(every), set(every), set(self._ending))
        self._pending.add(made)
        return made
