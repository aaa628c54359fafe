"""Weight versions: the table `versions`, of all numbers that were ever published."""

from __future__ import annotations

import sqlite3

from rljob_runtime.coordinator.store.connection import transaction
from rljob_runtime.coordinator.store.tables.meta import read, write
from rljob_runtime.scheduling.weight_versions import PublishedVersion, Versions

_FLOOR = "version_floor"


class WeightVersions:
    """The table `versions`, on the store's connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def used(self) -> Versions:
        """Return the versions of all rounds and groups in the store; the floor is above all others."""
        first = self._db.execute(
            # Ordered by step: by version, those of all pruned rounds would come first.
            "SELECT MIN(version) FROM versions INDEXED BY versions_by_step"
            " WHERE step >= (SELECT MIN(step) FROM boundaries)"
        ).fetchone()[0]
        opened = self._db.execute("SELECT MIN(version) FROM groups WHERE fate IS NULL").fetchone()[0]
        least = min((version for version in (first, opened) if version is not None), default=0)
        rows = self._db.execute(
            "SELECT version, step, lost FROM versions WHERE version >= ? ORDER BY version", (least,)
        ).fetchall()
        floor = max(int(read(self._db, _FLOOR) or 0), least - 1)
        return Versions(tuple(PublishedVersion(version, step, bool(lost)) for version, step, lost in rows), floor)

    def publish(self, version: int, step: int) -> None:
        """Reserve a version number, before the trainer publishes it."""
        with transaction(self._db):
            self._db.execute("INSERT INTO versions (version, step) VALUES (?, ?)", (version, step))

    def abandon_after(self, step: int) -> None:
        """Abandon the versions of later steps."""
        with transaction(self._db):
            self.mark_abandoned_after(step)

    # --- within the transactions of the store ---

    def mark_abandoned_after(self, step: int) -> None:
        """Abandon the versions of later steps."""
        self._db.execute("UPDATE versions SET lost = 1 WHERE step > ?", (step,))

    def raise_floor(self, version: int) -> None:
        """Count `version` and all lower ones as used."""
        write(self._db, _FLOOR, str(max(version, self.used().floor)))
