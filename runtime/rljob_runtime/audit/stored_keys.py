"""Stored keys: how a state store holds prompts and cursors of several sources.

A prompt is two integers there, (epoch, idx), in the keys of many tables. A named source has a number in the table
`sources`, and the epoch of its prompts has this number in its upper half. So each source has its own epochs, and a job
without named sources stores what it always stored.
"""

from __future__ import annotations

import json
import sqlite3

from rljob_runtime.protocols.trajectory import EVALUATION_SOURCE, Cursor, PromptKey, SourceCursor

TABLE = "CREATE TABLE sources (number INTEGER PRIMARY KEY CHECK (number > 0), name TEXT NOT NULL UNIQUE)"
MOST_INDEX = 2**63 - 1
"""Largest number of a record that a column holds."""
_SHIFT = 32
_EPOCH = (1 << _SHIFT) - 1


def prompt_sql(table: str = "") -> str:
    """Render SQL for the text of a row's prompt, as `PromptKey` writes it. `table`: the row's, if there are several."""
    row = f"{table}." if table else ""
    name = f"(SELECT name || '/' FROM sources WHERE number = {row}epoch >> {_SHIFT})"
    return f"ifnull({name}, '') || ({row}epoch & {_EPOCH}) || '.' || {row}idx"


def columns_of(db: sqlite3.Connection, prompt: PromptKey) -> tuple[int, int]:
    """Return `epoch` and `idx` of a prompt. The first prompt of a source gives it a number."""
    if not prompt.source:
        return prompt.epoch, prompt.index
    query = "SELECT number FROM sources WHERE name = ?"
    found = db.execute(query, (prompt.source,)).fetchone()
    if found is None:
        db.execute("INSERT INTO sources (name) VALUES (?)", (prompt.source,))
        found = db.execute(query, (prompt.source,)).fetchone()
    return found[0] << _SHIFT | prompt.epoch, prompt.index


def training_columns_of(db: sqlite3.Connection, prompt: PromptKey) -> tuple[int, int]:
    """Return `columns_of` a prompt that a table of training gets. Responses are trained on through such rows only.

    Raises `sqlite3.IntegrityError` for a prompt of an evaluation.
    """
    if prompt.evaluation is not None:
        raise sqlite3.IntegrityError(f"invariant: {prompt} belongs to an evaluation, which is never trained on")
    return columns_of(db, prompt)


def known_columns_of(db: sqlite3.Connection, prompt: PromptKey) -> tuple[int, int] | None:
    """Return `epoch` and `idx` of a prompt that may be stored; None for one that cannot be. Nothing is written."""
    if not 0 <= prompt.epoch <= _EPOCH or not 0 <= prompt.index <= MOST_INDEX:
        return None
    if not prompt.source:
        return prompt.epoch, prompt.index
    found = db.execute("SELECT number FROM sources WHERE name = ?", (prompt.source,)).fetchone()
    return (found[0] << _SHIFT | prompt.epoch, prompt.index) if found is not None else None


def evaluation_epochs(db: sqlite3.Connection) -> dict[str, range]:
    """Return the values of `epoch` that prompts of each evaluation have, by its name: one for each step."""
    found = {name: number << _SHIFT for number, name in db.execute("SELECT number, name FROM sources")}
    return {
        name.removeprefix(EVALUATION_SOURCE): range(first, first + _EPOCH + 1)
        for name, first in found.items()
        if name.startswith(EVALUATION_SOURCE)
    }


def prompt_of(db: sqlite3.Connection, epoch: int, index: int) -> PromptKey:
    """Return the prompt that `columns_of` stored."""
    if epoch <= _EPOCH:
        return PromptKey(epoch, index)
    name = db.execute("SELECT name FROM sources WHERE number = ?", (epoch >> _SHIFT,)).fetchone()[0]
    return PromptKey(epoch & _EPOCH, index, name)


def add_sources(db: sqlite3.Connection) -> None:
    """Add what stores of formats before 9 lack, to a copy of a store that is read only."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "sources" not in tables:
        db.execute(TABLE)
    for table in {"boundaries", "rounds", "pool"} & tables:
        columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        for column in ("sources", "races") if table == "rounds" else ("sources",):
            if column not in columns:
                db.execute(f"ALTER TABLE {table} ADD COLUMN {column} TEXT NOT NULL DEFAULT '[]'")


def sources_text(cursor: Cursor) -> str:
    """Return the column `sources` of a cursor, beside its `epoch` and `position`."""
    return json.dumps([[one.name, one.epoch, one.position, one.allotted, one.weight] for one in cursor.sources])


def cursor_of(epoch: int, position: int, sources: str = "[]") -> Cursor:
    """Return the cursor of these columns."""
    return Cursor(epoch, position, tuple(SourceCursor(*one) for one in json.loads(sources)))
