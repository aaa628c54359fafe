"""The store's thread prunes when no call waits."""

import asyncio
import sqlite3

from rljob_runtime.coordinator.store.connection import Opening
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreThread


async def test_the_store_thread_prunes_when_no_call_waits(tmp_path, monkeypatch, caplog):
    done: list[str] = []

    def tidy(store: Store) -> None:
        done.append("tidy")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Store, "tidy", tidy)
    thread = await StoreThread.open(lambda opening: Store(tmp_path / "state.db", "uid-1", opening), Opening())
    await asyncio.gather(thread.do(lambda store: done.append("one")), thread.do(lambda store: done.append("two")))
    await thread.do(lambda store: done.append("three"))
    assert done[:2] == ["one", "two"], "no call waits while it prunes"
    await thread.aclose()
    assert "tidy" in done
    assert "three" in done
    assert "stays as long as it is" in caplog.text
