"""The journal: events that wait are stored together, and have no effect before."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from rljob_runtime.coordinator.episodes.journal import Journal
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey

T = TypeVar("T")
EVENTS = 64


class Traced:
    """Access to a store whose transactions are counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store(path, "uid-1")
        self.commits = 0
        self.store.turns._db.set_trace_callback(self._trace)

    def _trace(self, statement: str) -> None:
        self.commits += statement == "COMMIT"

    async def do(self, work: Callable[[Store], T]) -> T:
        """Run `work` on the store."""
        return work(self.store)


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    traced = Traced(tmp_path / "state.db")
    yield traced
    traced.store.close()


def begin(index: int) -> Callable[[Store], int]:
    return lambda store: store.turns.begin(TrajectoryKey(PromptKey(0, index), 0), 1, 0.0, "calc")


async def test_events_that_wait_are_one_transaction_and_are_told_in_their_order(traced: Traced) -> None:
    journal, told = Journal(traced), list[int]()
    for index in range(EVENTS):
        journal.write(begin(index), told.append)
    running = asyncio.create_task(journal.run())
    await journal.written(lambda store: None)
    running.cancel()
    assert (journal.trips, traced.commits) == (1, 1)
    assert len(told) == EVENTS
    assert told == sorted(told)
    assert len(traced.store.turns.open_attempts()) == EVENTS


async def test_of_events_that_wait_with_one_that_fails_none_is_stored_or_told(traced: Traced) -> None:
    """The coordinator ends by it. The next one finds nothing that a client does not know."""
    journal, told = Journal(traced), list[int]()

    def fails(store: Store) -> int:
        begin(1)(store)
        raise sqlite3.OperationalError("disk I/O error")

    journal.write(begin(0), told.append)
    journal.write(fails, told.append)
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        await journal.run()
    assert told == []
    assert traced.store.turns.open_attempts() == []


def test_a_part_of_a_transaction_is_undone_by_itself(traced: Traced) -> None:
    def fails() -> None:
        with traced.store.together():
            begin(1)(traced.store)
            raise ZeroDivisionError

    with traced.store.together():
        begin(0)(traced.store)
        with pytest.raises(ZeroDivisionError):
            fails()
        begin(2)(traced.store)
        assert traced.commits == 0
    assert traced.commits == 1
    assert {one.key.prompt.index for one in traced.store.turns.open_attempts()} == {0, 2}
