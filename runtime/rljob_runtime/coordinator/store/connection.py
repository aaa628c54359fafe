"""Store connection: opens the file, locks it, selects the journal mode, and checks job and format."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_runtime.coordinator.store.schema import asynchronous, core, episodes, evaluation
from rljob_runtime.coordinator.store.schema.core import FORMAT
from rljob_runtime.coordinator.store.schema.migrations import migrate

log = logging.getLogger(__name__)

# Shared-memory indexes do not work across hosts on these file systems; fcntl locks do.
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "glusterfs", "lustre", "fuse.glusterfs"})

CACHE_KIB = 131_072
"""A flush touches a page or two of every response in progress: some 70 MB for 8,192 responses. SQLite's default of 2 MB
would write and read them again within a flush."""
JOURNAL_PAGES = 131_072
"""A commit that finds this many journal pages (512 MB) moves them into the file. `Store.tidy` does it earlier."""

_TABLES = core.TABLES + asynchronous.TABLES + evaluation.TABLES + episodes.TABLES
_TRIGGERS = core.TRIGGERS + "\n" + asynchronous.TRIGGERS + "\n" + episodes.TRIGGERS


ATTEMPTS_A_TERM = 1 << 20
"""More attempts than a coordinator gives to one response."""


LOCK_SECONDS = 1.0
"""Seconds that one try to open a file waits for its lock."""
LOOKS_EVERY = 100_000
"""SQLite instructions between two checks: some milliseconds."""


class StoreUnusable(Exception):
    """The file belongs to another job, has a newer format, or is damaged. The message says which, and what to do."""


class StoreHeld(StoreUnusable):
    """Another process holds the file; it may end."""


class Opening:
    """Progress of opening a store, which may take minutes; shared between threads."""

    def __init__(self, lock_seconds: float = LOCK_SECONDS) -> None:
        self.lock_seconds = lock_seconds
        """Seconds to wait for the lock."""
        self.doing = ""
        """The present step, as text."""
        self._given_up = False

    def tell(self, doing: str) -> None:
        """Report the present step."""
        log.info("%s", doing)
        self.doing = doing

    def give_up(self) -> None:
        """Cancel the opening; uncommitted work is rolled back."""
        self._given_up = True

    def watch(self, db: sqlite3.Connection) -> None:
        """Interrupt statements of this connection on cancellation, until `db.set_progress_handler` changes that."""
        db.set_progress_handler(lambda: self._given_up, LOOKS_EVERY)


def journal_for(path: Path, mounts: str | None = None) -> str:
    """Return WAL for local disks; TRUNCATE with an exclusive lock for network file systems, where WAL is unsafe."""
    text = mounts if mounts is not None else Path("/proc/mounts").read_text()
    points = [fields for fields in (line.split() for line in text.splitlines()) if len(fields) > 2]
    within = [fields for fields in points if path.resolve().is_relative_to(fields[1])]
    kind = max(within, key=lambda fields: len(fields[1]), default=["", "/", ""])[2]
    return "TRUNCATE" if kind in NETWORK_FILE_SYSTEMS else "WAL"


def open_file(path: Path, job: str, opening: Opening | None = None) -> sqlite3.Connection:
    """Open and lock the job's database; create it if it does not exist.

    Raises `StoreUnusable`; `StoreHeld` if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    opening = opening or Opening()
    try:
        db = sqlite3.connect(path, timeout=opening.lock_seconds, isolation_level=None, check_same_thread=False)
        try:
            opening.watch(db)
            _prepare(db, path, job, opening)
            db.set_progress_handler(None, 0)
        except (sqlite3.DatabaseError, StoreUnusable):
            db.close()
            raise
    except sqlite3.DatabaseError as error:
        kind = StoreHeld if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) else StoreUnusable
        raise kind(f"{path}: {error}; {_remedy(error)}") from error
    return db


def has_history(path: Path) -> bool:
    """Check whether a job has drawn prompts in this file, which no process may hold. Raises `StoreUnusable`."""
    if not path.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(path)) as db:
            tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            drawn = (f"SELECT 1 FROM {table} LIMIT 1" for table in ("rounds", "groups") if table in tables)
            return any(db.execute(query).fetchone() is not None for query in drawn)
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(f"{path}: {error}; {_remedy(error)}") from error


_OF_THE_FILE = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    }
)
"""Errors of the file or its volume, not of a statement."""


@contextmanager
def file_errors_stated(path: Path) -> Iterator[None]:
    """Raise `StoreUnusable` in place of an error of an open store's file or volume. Other errors pass."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if _code(error) not in _OF_THE_FILE:
            raise
        raise StoreUnusable(f"{path}: {error}; {_remedy(error)}") from error


def _remedy(error: sqlite3.DatabaseError) -> str:
    """Return what to do about the error. Only damage of the file itself costs the history."""
    untouched = "; nothing in the file was changed"
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return "its volume has no space left: make room there" + untouched
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "another process holds it: end that one first" + untouched
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PROTOCOL:
            return "see that its volume is there and can be written to" + untouched
        case _:
            return "restore the volume or give the job an empty one"


def _code(error: sqlite3.DatabaseError) -> int:
    """Return SQLite's primary error code; 0 without one."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _prepare(db: sqlite3.Connection, path: Path, job: str, opening: Opening) -> None:
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute(f"PRAGMA journal_mode = {journal_for(path)}")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    db.execute(f"PRAGMA wal_autocheckpoint = {JOURNAL_PAGES}")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > FORMAT:
        raise StoreUnusable(f"{path} has format {version}, this runtime knows {FORMAT}: use the one that wrote it")
    if version == 0:
        with transaction(db):
            for statement in _statements(_TABLES + _TRIGGERS):
                db.execute(statement)
            db.execute("INSERT INTO meta VALUES ('job', ?)", (job,))
            db.execute(f"PRAGMA user_version = {FORMAT}")
    owner = db.execute("SELECT value FROM meta WHERE key = 'job'").fetchone()
    if owner is None or owner[0] != job:
        found = owner[0] if owner is not None else "(none)"
        raise StoreUnusable(f"{path} belongs to job {found}, not {job}: give each job a folder of its own")
    if 0 < version < FORMAT:
        with transaction(db):
            migrate(db, version, _statements(_TRIGGERS), opening.tell)
    # Only now: it must not apply while tables are replaced.
    db.execute("PRAGMA foreign_keys = ON")


def begin_attempts(db: sqlite3.Connection, term: int) -> None:
    """Start the attempts of a new store above all that coordinators of former terms may have used.

    Replicas may remember those attempts, and messages about them may still arrive."""
    db.execute("INSERT INTO meta VALUES ('attempts', ?)", (str((term - 1) * ATTEMPTS_A_TERM),))


def attempts_before(db: sqlite3.Connection) -> int:
    """Return the attempt before a response's first one."""
    row = db.execute("SELECT value FROM meta WHERE key = 'attempts'").fetchone()
    return int(row[0]) if row is not None else 0


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one transaction; within another one, as a part of it that may be undone by itself."""
    begin, commit, undo = _PART if db.in_transaction else _COMPLETE
    db.execute(begin)
    try:
        yield
        db.execute(commit)
    except BaseException:
        # A full disk may have rolled it back already; the caller must receive that error.
        if db.in_transaction:
            for statement in undo:
                db.execute(statement)
        raise


_COMPLETE = ("BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",))
_PART = ("SAVEPOINT part", "RELEASE part", ("ROLLBACK TO part", "RELEASE part"))


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements; `executescript` would commit the surrounding transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
