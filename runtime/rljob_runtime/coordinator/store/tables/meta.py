"""Meta: the table `meta`, single values by key. Its functions run inside the caller's transaction."""

from __future__ import annotations

import sqlite3


def read(db: sqlite3.Connection, key: str) -> str | None:
    """Return a value; None without one."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def write(db: sqlite3.Connection, key: str, value: str) -> None:
    """Insert or replace a value."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
