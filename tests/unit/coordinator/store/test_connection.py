"""The store's file: when it is refused, what to do then, and the journal that suits its volume."""

import sqlite3
from functools import partial

import pytest

from rljob_runtime.coordinator.store.connection import StoreUnusable, journal_for
from rljob_runtime.coordinator.store.store import Store


def test_a_store_of_another_job_is_refused_by_name(tmp_path):
    Store(tmp_path / "state.db", "uid-1").close()
    with pytest.raises(StoreUnusable, match="belongs to job uid-1, not uid-2: give each job a folder of its own"):
        Store(tmp_path / "state.db", "uid-2")


def test_a_file_that_is_no_store_is_named(tmp_path):
    (tmp_path / "state.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreUnusable, match=r"state\.db: file is not a database; restore the volume"):
        Store(tmp_path / "state.db", "uid-1")


def test_a_store_in_other_hands_is_to_be_kept(tmp_path, monkeypatch):
    holder = Store(tmp_path / "state.db", "uid-1")
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.0))
    with pytest.raises(StoreUnusable, match="locked; another process holds it: end that one first; nothing in the"):
        Store(tmp_path / "state.db", "uid-1")
    holder.close()


def test_a_store_on_a_full_volume_is_to_be_kept(tmp_path, monkeypatch):
    def on_a_small_one(*arguments, connect=sqlite3.connect, **more):
        db = connect(*arguments, **more)
        db.execute("PRAGMA max_page_count = 2")
        return db

    with monkeypatch.context() as small:
        small.setattr(sqlite3, "connect", on_a_small_one)
        with pytest.raises(StoreUnusable, match="full; its volume has no space left: make room there; nothing in the"):
            Store(tmp_path / "state.db", "uid-1")
    Store(tmp_path / "state.db", "uid-1").close()


def test_a_store_that_cannot_be_reached_is_to_be_kept(tmp_path):
    (tmp_path / "state.db").mkdir()
    with pytest.raises(StoreUnusable, match="unable to open database file; see that its volume is there and can be"):
        Store(tmp_path / "state.db", "uid-1")


@pytest.mark.parametrize(("kind", "journal"), [("ext4", "WAL"), ("nfs4", "TRUNCATE")])
def test_the_journal_suits_the_file_system(tmp_path, kind, journal):
    mounts = f"overlay / overlay rw 0 0\nvolume {tmp_path.resolve()} {kind} rw 0 0\n"
    assert journal_for(tmp_path / "state.db", mounts) == journal
