"""Store access: reads a copy of a job's state store, so that the store does not change and its writer does not wait."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from rljob_runtime.audit import asynchronous as asynchronous_audit
from rljob_runtime.audit import on_policy
from rljob_runtime.audit.findings import AuditResult, Finding, Rule
from rljob_runtime.audit.lineage import audit_episodes
from rljob_runtime.audit.stored_keys import add_sources
from rljob_runtime.audit.updates import Updates

FILE = "state.db"
"""Name of the store in a job's folder."""


class NoHistory(Exception):
    """There is no store to read. The message says what was found."""


def audit(path: Path) -> AuditResult:
    """Audit a store file, or the store in a job's folder.

    The job must have ended or stand still: a copy during writes may mix two states. Raises `NoHistory`."""
    file = path / FILE if path.is_dir() else path
    with store_copy(file) as db:
        if damage := list(_damage(db)):
            return AuditResult("", 0, 0, findings=tuple(damage))
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "boundaries" not in tables:
            raise NoHistory(f"{file} is no state store: it has no table of boundaries")
        add_sources(db)
        updates = Updates.of(db)
        if updates is None:
            raise NoHistory(f"{file}: no update was begun yet")
        asynchronous = "pool" in tables and db.execute("SELECT 1 FROM pool").fetchone() is not None
        verdict = asynchronous_audit.audit_groups(db, updates) if asynchronous else on_policy.audit_rounds(db, updates)
        lineage = audit_episodes(db, asynchronous)
        if lineage is not None:
            verdict = replace(verdict, findings=(*verdict.findings, *lineage.findings), episodes=lineage.counts)
        return replace(verdict, findings=(*verdict.findings, *_orphans(db)))


@contextmanager
def store_copy(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of the database and of its journal."""
    if not file.is_file():
        raise NoHistory(f"{file} is not there")
    with tempfile.TemporaryDirectory(prefix="rljob-check-") as folder:
        try:
            for suffix in ("", "-wal", "-journal"):
                part = file.with_name(file.name + suffix)
                if part.is_file():
                    shutil.copyfile(part, Path(folder) / (FILE + suffix))
        except OSError as error:
            raise NoHistory(f"{file} cannot be read: {error.strerror}") from error
        with closing(sqlite3.connect(Path(folder) / FILE)) as db:
            try:
                db.execute("SELECT COUNT(*) FROM sqlite_master")
            except sqlite3.DatabaseError as error:
                raise NoHistory(f"{file} is no database: {error}") from error
            yield db


def _damage(db: sqlite3.Connection) -> Iterator[Finding]:
    """Return why the file is unreadable."""
    try:
        told = [row[0] for row in db.execute("PRAGMA integrity_check(1000)")]
    except sqlite3.DatabaseError as error:
        told = [str(error)]
    # Other checks cover single rows. For tables without rowids whose key is not their first columns, SQLite's check for
    # NULL uses the wrong column.
    rows = ("ok", "NULL value in ", "CHECK constraint failed in ")
    yield from (Finding(Rule.DAMAGED, "file", one) for one in told if not one.startswith(rows))


def _orphans(db: sqlite3.Connection) -> Iterator[Finding]:
    """Return rows without a parent."""
    for (table, parent), count in Counter((row[0], row[2]) for row in db.execute("PRAGMA foreign_key_check")).items():
        yield Finding(Rule.DAMAGED, "file", f"{count} rows of {table} have no row in {parent}")
