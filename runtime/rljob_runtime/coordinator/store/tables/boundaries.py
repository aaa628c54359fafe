"""Boundaries: the state after each round or update, and what grows with it (`anchors`, `rewards`)."""

from __future__ import annotations

import json
import sqlite3

from rljob_api.status import RoundReport, RuntimeTotals
from rljob_runtime.audit.stored_keys import cursor_of, sources_text
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.protocols.rewards import Anchors
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.status_cadence import reward_ends


class Boundaries:
    """The tables `boundaries`, `anchors` and `rewards`, on the store's connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def newest(self) -> Boundary | None:
        """Return the newest boundary; None for a new job."""
        row = self._db.execute(
            "SELECT step, epoch, position, totals, report, long_queue, sources FROM boundaries"
            " ORDER BY step DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        report = RoundReport.model_validate_json(row[4]) if row[4] else None
        queue = tuple(PromptKey.parse(text) for text in json.loads(row[5]))
        return Boundary(
            row[0], cursor_of(row[1], row[2], row[6]), RuntimeTotals.model_validate_json(row[3]), report, queue
        )

    def steps(self) -> tuple[int, ...]:
        """Return the closed rounds that are not pruned, rising."""
        rows = self._db.execute("SELECT step FROM boundaries WHERE report IS NOT NULL ORDER BY step").fetchall()
        return tuple(step for (step,) in rows)

    def anchors(self) -> dict[str, dict[str, int]]:
        """Return the anchors of reward timeouts at the newest boundary."""
        rows = self._db.execute("SELECT rule, test, MAX(milliseconds) FROM anchors GROUP BY rule, test").fetchall()
        found: dict[str, dict[str, int]] = {}
        for rule, test, milliseconds in rows:
            found.setdefault(rule, {})[test] = milliseconds
        return found

    def reward_ends(self) -> tuple[float | None, float | None]:
        """Return `status_cadence.reward_ends` of all closed rounds."""

        def total(rounds: int) -> float:
            row = self._db.execute("SELECT total FROM rewards WHERE number = ?", (rounds,)).fetchone()
            return row[0] if row is not None else 0.0

        count = self._db.execute("SELECT number FROM rewards ORDER BY step DESC LIMIT 1").fetchone()
        return reward_ends(count[0] if count is not None else 0, total)

    # --- within the transactions of the store ---

    def rewind(self, step: int, tokens: int) -> bool:
        """Delete the boundaries after `step` and count `tokens` as lost in its totals; False if the store has none."""
        row = self._db.execute("SELECT totals FROM boundaries WHERE step = ?", (step,)).fetchone()
        if row is None:
            return False
        totals = RuntimeTotals.model_validate_json(row[0])
        lost = totals.model_copy(update={"lost_version_tokens": totals.lost_version_tokens + tokens})
        self._db.execute("UPDATE boundaries SET totals = ? WHERE step = ?", (json.dumps(lost.to_dict()), step))
        self.forget_after(step)
        return True

    def forget_after(self, step: int) -> None:
        """Delete the boundaries of later steps, with their anchors and rewards."""
        for table in ("boundaries", "rewards"):
            self._db.execute(f"DELETE FROM {table} WHERE step > ?", (step,))


def insert_boundary(db: sqlite3.Connection, boundary: Boundary, risen: Anchors) -> None:
    """Insert the boundary within the caller's transaction. `risen`: the anchors that rose."""
    report = json.dumps(boundary.report.to_dict()) if boundary.report is not None else None
    db.execute(
        "INSERT INTO boundaries (step, epoch, position, sources, totals, report, long_queue)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            boundary.step,
            boundary.cursor.epoch,
            boundary.cursor.position,
            sources_text(boundary.cursor),
            json.dumps(boundary.totals.to_dict()),
            report,
            json.dumps([str(prompt) for prompt in boundary.queue]),
        ),
    )
    if boundary.report is not None and boundary.report.reward is not None:
        last = db.execute("SELECT number, total FROM rewards ORDER BY step DESC LIMIT 1").fetchone()
        number, total = last or (0, 0.0)
        sums = (boundary.step, number + 1, total + boundary.report.reward)
        db.execute("INSERT INTO rewards VALUES (?, ?, ?)", sums)
    db.executemany(
        "INSERT INTO anchors VALUES (?, ?, ?, ?)",
        [(boundary.step, rule, test, kept) for rule, tests in risen.items() for test, kept in tests.items()],
    )
