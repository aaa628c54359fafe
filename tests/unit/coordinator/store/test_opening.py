"""Opening the store: the event loop goes on, a process that holds it is awaited, and users are told."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rljob_api.constants import HALTING
from rljob_api.status import RuntimeStatus
from rljob_runtime.coordinator.store import opening as module
from rljob_runtime.coordinator.store.connection import Opening, StoreHeld, StoreUnusable
from rljob_runtime.coordinator.store.opening import STORE_OPENING, EarlyReports, open_store
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreThread
from rljob_runtime.protocols import PeerTimeout
from rljob_runtime.scheduling.backoff import Backoff
from tests.support.simulated_job import until

HOLDER = """
import sys
from pathlib import Path
from rljob_runtime.coordinator.store.store import Store
stores = {}
for line in sys.stdin:
    verb, path = line.rstrip().split(" ", 1)
    if verb == "hold":
        stores[path] = Store(Path(path), "uid-1")
        stores[path].adopt_term(3)
    else:
        stores.pop(path).close()
    print(verb, flush=True)
"""


class Told:
    """As `EarlyReports.tell`."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str | None]] = []

    def __call__(self, reason: str, message: str | None) -> None:
        self.all.append((reason, message))

    def of(self, reason: str) -> list[str | None]:
        return [message for said, message in self.all if said == reason]


@pytest.fixture(scope="module")
def other_process():
    """Tells another process what to do with a store; returns when it is done."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def tell(verb: str, path: Path) -> None:
            print(verb, path, file=process.stdin, flush=True)
            assert process.stdout.readline() == f"{verb}\n"

        yield tell
        process.kill()


@pytest.fixture
def let_go(tmp_path, other_process):
    """Another process has the store of this job open until this is called."""
    held = [tmp_path / "state.db"]
    other_process("hold", held[0])

    def once() -> None:
        while held:
            other_process("close", held.pop())

    yield once
    once()


async def test_a_store_held_by_another_process_is_awaited(tmp_path, let_go, monkeypatch):
    monkeypatch.setattr(module, "HELD_BACK_OFF", Backoff(initial=0.1, maximum=0.1))
    told = Told()
    opening = asyncio.create_task(
        open_store(lambda opening: Store(tmp_path / "state.db", "uid-1", opening), told, patience=100.0)
    )
    await until(lambda: bool(told.of("StoreHeld")))
    assert "another process holds it" in told.of("StoreHeld")[0]
    assert "StoreHeld" in HALTING
    await asyncio.sleep(0.3)
    assert not opening.done()
    let_go()
    store = await asyncio.wait_for(opening, 30)
    assert told.of("StoreHeld")[-1] is None, "it is told that it goes on"
    assert await store.do(lambda opened: opened.adopt_term(1)) == 4, "the term is above the holder's"
    await store.aclose()


@pytest.mark.usefixtures("let_go")
async def test_a_store_that_stays_locked_is_refused_in_the_end(tmp_path):
    with pytest.raises(StoreHeld, match="another process holds it"):
        await open_store(lambda opening: Store(tmp_path / "state.db", "uid-1", opening), Told(), patience=0.0)


async def test_the_loop_goes_on_while_a_store_is_opened_and_people_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(module, "LONG_SECONDS", 0.1)
    told, goes_on = Told(), threading.Event()

    def slow(opening: Opening) -> Store:
        opening.tell("the store is brought from format 1 to 6: step 1 of 6")
        assert goes_on.wait(60), "the loop stands still until the store is open"
        return Store(tmp_path / "state.db", "uid-1", opening)

    opening = asyncio.create_task(open_store(slow, told, patience=0.0))
    await until(lambda: any(told.of(STORE_OPENING)))
    assert not opening.done()
    goes_on.set()
    store = await opening
    await store.aclose()
    said = [message for message in told.of(STORE_OPENING) if message]
    assert said[0].startswith("the store is brought from format 1 to 6: step 1 of 6. Nothing is lost")
    assert told.of(STORE_OPENING)[-1] is None


async def test_a_cancelled_opening_ends_and_holds_nothing(tmp_path):
    """As where the Lease is lost in the middle of a migration."""
    path, began, ended = tmp_path / "state.db", threading.Event(), []

    def endless(opening: Opening) -> Store:
        db = sqlite3.connect(path, isolation_level=None)
        opening.watch(db)
        try:
            db.execute("BEGIN EXCLUSIVE")
            began.set()
            # It takes a minute, if nothing interrupts it.
            count = (
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 500000000) SELECT COUNT(*) FROM n"
            )
            db.execute(count)
        except sqlite3.OperationalError as error:
            ended.append(str(error))
            raise
        finally:
            db.close()
        raise AssertionError("it has no end")

    opening = asyncio.create_task(open_store(endless, Told(), patience=0.0))
    await until(began.is_set)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    for _ in range(500):
        if ended:
            break
        await asyncio.sleep(0.01)
    assert ended == ["interrupted"]
    Store(path, "uid-1").close()


async def test_a_store_that_came_too_late_is_closed(tmp_path):
    path, began, goes_on = tmp_path / "state.db", threading.Event(), threading.Event()

    def late(opening: Opening) -> Store:
        began.set()
        assert goes_on.wait(60)
        return Store(path, "uid-1")

    opening = asyncio.create_task(StoreThread.open(late, Opening()))
    await until(began.is_set)
    opening.cancel()
    asyncio.get_running_loop().call_later(0.1, goes_on.set)
    with pytest.raises(asyncio.CancelledError):
        await opening
    for _ in range(100):
        try:
            Store(path, "uid-1").close()
        except StoreHeld:
            await asyncio.sleep(0.05)
        else:
            return
    raise AssertionError("it is held for ever")


async def test_what_cannot_be_used_is_told_immediately(tmp_path):
    Store(tmp_path / "state.db", "uid-2").close()
    with pytest.raises(StoreUnusable, match="belongs to job uid-2") as caught:
        await open_store(lambda opening: Store(tmp_path / "state.db", "uid-1", opening), Told(), patience=1e6)
    assert not isinstance(caught.value, StoreHeld)


async def test_a_bug_in_the_background_of_a_call_is_raised_by_the_next(tmp_path):
    class Broken(Store):
        def tidy(self) -> None:
            raise KeyError("a bug")

    store = await StoreThread.open(lambda opening: Broken(tmp_path / "state.db", "uid-1"), Opening())
    await store.do(lambda opened: opened.adopt_term(1))
    await asyncio.wait_for(store._run(lambda store: store.boundaries.newest()), 10)  # behind it
    with pytest.raises(KeyError, match="a bug"):
        await store.do(lambda store: store.boundaries.newest())
    await store.aclose()


class Control:
    """A control plane that refuses the first reports."""

    def __init__(self, refuses: int = 0) -> None:
        self.reports: list[RuntimeStatus] = []
        self._refuses = refuses

    async def report(self, status: RuntimeStatus) -> None:
        self._refuses -= 1
        if self._refuses >= 0:
            raise PeerTimeout("not now")
        self.reports.append(status)


async def test_a_start_without_trouble_writes_nothing():
    early = EarlyReports(control := Control(), RuntimeStatus(round=7, event=5), Backoff(0.01, maximum=0.01))
    async with early.written():
        early.tell("StoreHeld", None)
        await asyncio.sleep(0.05)
    assert control.reports == []
    assert early.draft.event == 5


async def test_trouble_at_the_start_is_in_the_status_and_nothing_else_is_gone():
    before = RuntimeStatus(round=7, event=5, kind="Long", weight_version=9, stage="Training")
    early = EarlyReports(control := Control(refuses=2), before, Backoff(0.01, maximum=0.01))
    async with early.written():
        early.tell("StoreHeld", "it is locked")
        for _ in range(500):
            if control.reports:
                break
            await asyncio.sleep(0.01)
    (report,) = control.reports
    assert [(problem.reason, problem.message) for problem in report.warnings] == [("StoreHeld", "it is locked")]
    assert (report.round, report.weight_version, report.stage, report.event) == (7, 9, "Starting", 6)
    assert early.draft.kind == "Long", "the coordinator goes on from it"


@pytest.mark.usefixtures("let_go")
def test_a_waiting_coordinator_needs_no_file_of_its_own(tmp_path):
    """SQLite's message alone says nothing to a user."""
    began = time.monotonic()
    with pytest.raises(StoreHeld, match=r"database is locked; another process holds it: end that one first"):
        Store(Path(tmp_path / "state.db"), "uid-1")
    assert time.monotonic() - began < 4
