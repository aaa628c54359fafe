"""Asynchronous rewind: starts a history or undoes updates.

Its functions run inside transactions of `Store.start_at` and `Store.rewind`.
"""

from __future__ import annotations

import sqlite3

from rljob_runtime.audit.stored_keys import columns_of, prompt_of, sources_text
from rljob_runtime.coordinator.store.records import Pool
from rljob_runtime.coordinator.store.tables import attempts
from rljob_runtime.protocols.trajectory import Cursor
from rljob_runtime.scheduling.round_plan import PromptOutcome

STORE_LOST = "StoreLost"
"""Reason of a prompt that is requeued because the store with its group was lost."""
REWOUND = "Rewound"
"""Reason of a prompt that is requeued because its update is undone and its tokens are gone."""


def begin(db: sqlite3.Connection, pool: Pool | None) -> None:
    """Start a history: nothing is in flight, waiting prompts are requeued. `pool` is None for an on-policy job."""
    for table in ("groups", "pool"):
        db.execute(f"DELETE FROM {table}")
    if pool is None:
        return
    set_cursor(db, pool.cursor)
    db.executemany(
        "INSERT INTO groups (epoch, idx, draw, drawn, fate, reason, queued) VALUES (?, ?, 0, ?, ?, ?, ?)",
        [
            (*columns_of(db, prompt), number, PromptOutcome.REQUEUED.value, STORE_LOST, number)
            for number, prompt in enumerate(pool.queue, 1)
        ],
    )


def give_back(db: sqlite3.Connection, step: int) -> None:
    """Undo the updates after `step`; their boundaries are deleted.

    Consumed groups are ready again and assigned groups free. A group without tokens is generated again."""
    rows = db.execute(
        "SELECT epoch, idx, draw FROM groups AS g WHERE step > ? AND EXISTS (SELECT 1 FROM samples"
        " WHERE epoch = g.epoch AND idx = g.idx AND draw = g.draw AND tokens IS NOT NULL) ORDER BY step, place",
        (step,),
    ).fetchall()
    for group in rows:
        db.execute(
            "UPDATE groups SET step = NULL, place = NULL, fate = ?, reason = ?, queued = ?"
            " WHERE epoch = ? AND idx = ? AND draw = ?",
            (PromptOutcome.REQUEUED.value, REWOUND, next_number(db, "queued"), *group),
        )
    db.execute("UPDATE groups SET step = NULL, place = NULL, fate = NULL WHERE step > ?", (step,))
    attempts.set_aside(db, [prompt_of(db, epoch, index) for epoch, index, _ in rows])


def set_cursor(db: sqlite3.Connection, cursor: Cursor) -> None:
    """Set the position of the next fresh prompt."""
    db.execute(
        "INSERT INTO pool VALUES (1, ?, ?, ?) ON CONFLICT (one) DO UPDATE"
        " SET epoch = excluded.epoch, position = excluded.position, sources = excluded.sources",
        (cursor.epoch, cursor.position, sources_text(cursor)),
    )


def next_number(db: sqlite3.Connection, column: str) -> int:
    """Return the number after the highest of `drawn`, `ready` or `queued`."""
    return int(db.execute(f"SELECT ifnull(MAX({column}), 0) + 1 FROM groups").fetchone()[0])
