"""A transaction that a full disk ends."""

import sqlite3

import pytest

from rljob_runtime.coordinator.store.connection import transaction


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


def insert(db, rows):
    with transaction(db):
        for _ in range(rows):
            db.execute("INSERT INTO chunks VALUES (zeroblob(3000))")
