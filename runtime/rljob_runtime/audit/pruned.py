"""Pruned rounds: the sums that a store keeps of them, by round and epoch."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rljob_runtime.audit.findings import Finding, Rule
from rljob_runtime.audit.stored_keys import cursor_of
from rljob_runtime.protocols.trajectory import Cursor


@dataclass(frozen=True)
class Pruned:
    """Sums of pruned rounds.

    `began` and `first`: step and cursor at which the history began. `steps`: pruned rounds. `fresh` and `highest`:
    prompts that the cursor drew in them, and the highest index, by epoch as the store holds it (`stored_keys`), as is
    `filtered`."""

    began: int | None = None
    first: Cursor = field(default_factory=Cursor)
    steps: tuple[int, ...] = ()
    fresh: Mapping[int, int] = field(default_factory=dict)
    highest: Mapping[int, int] = field(default_factory=dict)
    filtered: Mapping[int, int] = field(default_factory=dict)
    fates: Mapping[str, int] = field(default_factory=dict)
    draws: int = 0
    trajectories: int = 0
    tokens: int = 0
    untrained: tuple[int, ...] = ()
    """Rounds without a trained group."""
    uneven: tuple[int, ...] = ()
    """Rounds whose prompts ended more often than they were drawn."""

    @classmethod
    def of(cls, db: sqlite3.Connection) -> Pruned:
        """Read the sums; empty for a store without pruned rounds, and for formats without pruning."""
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        origin = db.execute("SELECT value FROM meta WHERE key = 'origin'").fetchone() if "pruned" in tables else None
        if origin is None:
            return cls()
        began, *cursor = json.loads(origin[0])
        steps: Counter[int] = Counter()
        fresh: Counter[int] = Counter()
        filtered_of: Counter[int] = Counter()
        highest: dict[int, int] = {}
        fates: Counter[str] = Counter()
        uneven: Counter[int] = Counter()
        draws = trajectories = tokens = 0
        rows = db.execute(
            "SELECT step, epoch, draws, fresh, trained, filtered, trajectories, tokens, highest FROM pruned ORDER BY 1"
        )
        for step, of_epoch, drawn, new, trained, filtered, ended, length, top in rows:
            steps[step] += trained
            fresh[of_epoch] += new
            filtered_of[of_epoch] += filtered
            highest[of_epoch] = max(highest.get(of_epoch, 0), top)
            fates += Counter(trained=trained, filtered=filtered)
            uneven[step] += trained + filtered > drawn or new > drawn or ended < trained
            draws, trajectories, tokens = draws + drawn, trajectories + ended, tokens + length
        return cls(
            began=began,
            first=cursor_of(*cursor),
            steps=tuple(steps),
            fresh=fresh,
            highest=highest,
            filtered=filtered_of,
            fates=fates,
            draws=draws,
            trajectories=trajectories,
            tokens=tokens,
            untrained=tuple(step for step, trained in steps.items() if not trained),
            uneven=tuple(step for step, wrong in uneven.items() if wrong),
        )

    def findings(self) -> Iterator[Finding]:
        """Return impossible sums."""
        for step in self.untrained:
            yield Finding(Rule.GAP, f"update {step}", "is pruned, and nothing was trained on in it")
        for step in self.uneven:
            yield Finding(Rule.TWICE, f"update {step}", "is pruned, and more prompts ended in it than were drawn")


def versions(db: sqlite3.Connection, kept: str) -> int:
    """Count the weight versions trained on; `kept` selects those of the remaining rounds."""
    columns = {row[1] for row in db.execute("PRAGMA table_info(versions)")}
    gone = "SELECT version FROM versions WHERE trained" if "trained" in columns else "SELECT NULL WHERE 0"
    count: int = db.execute(f"SELECT COUNT(*) FROM ({kept} UNION {gone})").fetchone()[0]
    return count
