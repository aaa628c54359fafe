"""What a store keeps of the rounds that were pruned: sums by round and epoch."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rljob_runtime.audit.findings import Finding, Rule
from rljob_runtime.protocols.trajectory import Cursor


@dataclass(frozen=True)
class Pruned:
    """`began` and `first`: the step and the cursor at which the history began. `steps`: the rounds that are pruned;
    `fresh` and `highest`: prompts that the cursor drew in them, and the highest index of all, by epoch."""

    began: int | None = None
    first: Cursor = field(default_factory=Cursor)
    steps: tuple[int, ...] = ()
    fresh: Mapping[int, int] = field(default_factory=dict)
    highest: Mapping[int, int] = field(default_factory=dict)
    fates: Mapping[str, int] = field(default_factory=dict)
    draws: int = 0
    trajectories: int = 0
    tokens: int = 0
    untrained: tuple[int, ...] = ()
    """Rounds in which nothing was trained on."""
    uneven: tuple[int, ...] = ()
    """Rounds whose prompts ended more often than they were drawn."""

    @classmethod
    def of(cls, db: sqlite3.Connection) -> Pruned:
        """Empty for a store that has all of its rounds, and for one of a format that was never pruned."""
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        origin = db.execute("SELECT value FROM meta WHERE key = 'origin'").fetchone() if "pruned" in tables else None
        if origin is None:
            return cls()
        began, epoch, position = json.loads(origin[0])
        steps: Counter[int] = Counter()
        fresh: Counter[int] = Counter()
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
            highest[of_epoch] = max(highest.get(of_epoch, 0), top)
            fates += Counter(trained=trained, filtered=filtered)
            uneven[step] += trained + filtered > drawn or new > drawn or ended < trained
            draws, trajectories, tokens = draws + drawn, trajectories + ended, tokens + length
        return cls(
            began=began,
            first=Cursor(epoch, position),
            steps=tuple(steps),
            fresh=fresh,
            highest=highest,
            fates=fates,
            draws=draws,
            trajectories=trajectories,
            tokens=tokens,
            untrained=tuple(step for step, trained in steps.items() if not trained),
            uneven=tuple(step for step, wrong in uneven.items() if wrong),
        )

    def findings(self) -> Iterator[Finding]:
        """Sums that cannot be."""
        for step in self.untrained:
            yield Finding(Rule.GAP, f"update {step}", "is pruned, and nothing was trained on in it")
        for step in self.uneven:
            yield Finding(Rule.TWICE, f"update {step}", "is pruned, and more prompts ended in it than were drawn")


def versions(db: sqlite3.Connection, kept: str) -> int:
    """How many weight versions were trained on; `kept` selects those of the rounds that are kept."""
    columns = {row[1] for row in db.execute("PRAGMA table_info(versions)")}
    gone = "SELECT version FROM versions WHERE trained" if "trained" in columns else "SELECT NULL WHERE 0"
    count: int = db.execute(f"SELECT COUNT(*) FROM ({kept} UNION {gone})").fetchone()[0]
    return count
