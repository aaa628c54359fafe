"""A transaction that a full disk ends, and what is said of it."""

import sqlite3

import pytest

from rljob_runtime.coordinator.store.connection import StoreUnusable, file_errors_stated, transaction
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import Cursor
from tests.support.small_disk import small_disk


@pytest.mark.parametrize("cache_pages", [1, 1000])
def test_a_full_disk_is_told_also_where_it_has_rolled_back_by_itself(tmp_path, cache_pages):
    db = sqlite3.connect(tmp_path / "full.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE chunks (tokens BLOB)")
    # A small cache writes pages before the commit, and fails where SQLite cannot go on with the transaction.
    db.execute(f"PRAGMA cache_size = {cache_pages}")
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages + 3}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        insert(db, 100)
    assert not db.in_transaction
    assert db.execute("SELECT count(*) FROM chunks").fetchone() == (0,)
    db.execute(f"PRAGMA max_page_count = {pages + 1000}")
    insert(db, 1)
    assert db.execute("SELECT count(*) FROM chunks").fetchone() == (1,)


def test_a_store_on_a_full_disk_says_what_to_do_and_loses_nothing(tmp_path):
    with small_disk(tmp_path / "disk", megabytes=2) as disk:
        path = disk.folder / "state.db"
        store = Store(path, "uid-1")
        store.start_at(Boundary(0, Cursor()))
        disk.fill()
        with pytest.raises(StoreUnusable) as refused:
            publish_many(store, path)
        said = f"{path}: database or disk is full; its volume has no space left: make room there; nothing in the file"
        assert str(refused.value).startswith(said)
        before = store.versions.used()
        disk.make_room()
        store.close()
        store = Store(path, "uid-1")
        assert store.versions.used() == before, "what was committed is there, and nothing else"
        store.versions.publish(before.next_version(), 0)
        store.close()


def publish_many(store, path):
    with file_errors_stated(path):
        for version in range(1, 10_000):
            store.versions.publish(version, 0)


def test_a_mistake_in_a_statement_is_not_said_of_the_file(tmp_path):
    db = sqlite3.connect(tmp_path / "some.db")
    with pytest.raises(sqlite3.OperationalError, match="no such table"), file_errors_stated(tmp_path / "some.db"):
        db.execute("SELECT 1 FROM absent")


def insert(db, rows):
    with transaction(db):
        for _ in range(rows):
            db.execute("INSERT INTO chunks VALUES (zeroblob(3000))")
