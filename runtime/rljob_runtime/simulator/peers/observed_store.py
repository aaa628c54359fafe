"""Observed store: the coordinator's real store, which passes every committed row to observers.

Invariants follow the store row by row and never read it.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from rljob_runtime.audit.stored_keys import columns_of
from rljob_runtime.coordinator.store.connection import Opening
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.simulator.core.events import Committed, Observe, Row, unobserved
from rljob_runtime.simulator.core.network import SLOW_MESSAGE_SECONDS, CoordinatorIncarnation, FaultKind

T = TypeVar("T")

# By table: the columns that identify a row, and those that observers receive.
WATCHED = {
    "boundaries": (("step",), ("epoch", "position", "long_queue", "sources")),
    "rounds": (("step",), ("version", "responses")),
    "prompts": (("step", "epoch", "idx"), ("fate",)),
    "trajectories": (("step", "epoch", "idx", "sample"), ("attempt", "failures", "version", "finish", "outcome")),
    "chunks": (("step", "epoch", "idx", "sample", "start"), ("length(tokens) / 4",)),
    "versions": (("version",), ("step", "lost")),
    "anchors": (("step",), ("rule", "test", "milliseconds")),
    "pool": (("one",), ("epoch", "position")),
    "groups": (("epoch", "idx", "draw"), ("version", "replica", "ready", "step", "fate", "reason")),
    "samples": (("epoch", "idx", "draw", "sample"), ("attempt", "failures", "replica", "finish", "reward", "tokens")),
    "experience_chunks": (("epoch", "idx", "draw", "sample", "start"), ("length(tokens) / 4",)),
    "evaluations": (("step",), ("name", "result", "abandoned")),
    "episodes": (("id",), ("reached", "started", "pauses", "ended")),
}
_UNLIMITED = 1 << 30


class ObservedStore(Store):
    """A `Store` without disk synchronisation: simulated deaths hit the coordinator, never its machine."""

    def __init__(self, path: Path, job: str, observe: Observe = unobserved, sources: Iterable[str] = ()) -> None:
        super().__init__(path, job, Opening(lock_seconds=0.0))
        # In this order after each start, so that observers know a source by its number.
        for source in sources:
            columns_of(self._db, PromptKey(0, 0, source))
        self._observe = observe
        self._written: list[Row] = []
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.create_function("watched", -1, self._note)
        for table, (identity, values) in WATCHED.items():
            self._watch(table, identity, values)

    def _watch(self, table: str, identity: tuple[str, ...], values: tuple[str, ...]) -> None:
        def of(row: str, columns: tuple[str, ...]) -> str:
            return ", ".join(
                column.replace("(", f"({row}.") if "(" in column else f"{row}.{column}" for column in columns
            )

        for event, row, told in (("INSERT", "NEW", values), ("UPDATE", "NEW", values), ("DELETE", "OLD", ())):
            columns = ", ".join(filter(None, (f"'{table}'", str(len(identity)), of(row, identity), of(row, told))))
            self._db.execute(
                f"CREATE TEMP TRIGGER watch_{table}_{event} AFTER {event} ON main.{table}"
                f" BEGIN SELECT watched({columns}); END"
            )

    def _note(self, table: str, size: int, *columns: int | float | str | None) -> None:
        identity = tuple(column for column in columns[:size] if isinstance(column, int))
        self._written.append(Row(table, identity, columns[size:] or None))

    def prune(self, keep: int) -> bool:
        """Prune without an event: observers follow the complete history."""
        pruned = super().prune(keep)
        self.forget()
        return pruned

    def notify(self) -> None:
        """Pass committed rows to observers."""
        written, self._written = self._written, []
        if written:
            self._observe(Committed(tuple(written)))

    def forget(self) -> None:
        """Drop rows of a rolled back transaction."""
        self._written.clear()

    def fill_disk(self, full: bool) -> None:
        """Prevent the file from growing, or permit it again; SQLite itself reports the full disk."""
        pages = self._db.execute("PRAGMA page_count").fetchone()[0]
        self._db.execute(f"PRAGMA max_page_count = {pages if full else _UNLIMITED}")


class InlineStore:
    """`StoreAccess` without a thread, which virtual time does not have.

    `around` is called "before" and "after" each call. With a `life` calls take `seconds`, and end with it."""

    def __init__(
        self,
        store: ObservedStore,
        around: Callable[[str], None] = lambda moment: None,
        life: CoordinatorIncarnation | None = None,
        seconds: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._store = store
        self._around = around
        self._life = life or CoordinatorIncarnation()
        self._seconds = seconds
        self._rng = random.Random(f"{seed}/store")
        self._turn = asyncio.Lock()

    async def do(self, work: Callable[[Store], T]) -> T:
        async with self._turn:
            await self._take_time()
            self._around("before")
            try:
                result = work(self._store)
            except BaseException:
                self._store.forget()
                raise
            self._store.notify()
            self._around("after")
            await self._take_time()
            return result

    async def _take_time(self) -> None:
        slow = SLOW_MESSAGE_SECONDS if FaultKind.SLOW in self._life.condition else 0.0
        await asyncio.sleep((self._seconds + slow) * self._rng.uniform(0.5, 1.5))
        await self._life.awake()


def is_full_disk(error: BaseException | None) -> bool:
    """Check whether the coordinator died of a full volume."""
    return isinstance(error, sqlite3.OperationalError) and "full" in str(error)
