"""Attempt rows: the attempts of episodes in a store, each followed by the nodes of its tree, from any place on.

A row is a mapping of names to values. A row of an attempt has `nodes`, their number. A row of a node has `turn`, its
number among those of all attempts. `tokens` and `logprobs` of a node are bytes (int32, float32); where only sizes are
wanted, `tokens` is their number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rljob_runtime.audit.stored_keys import prompt_of

if TYPE_CHECKING:  # `rljob` reads copies of stores, and needs none of what writes them.
    from rljob_runtime.coordinator.store.store import Store

PART_BYTES = 256 << 10
"""Bytes of tokens that one call of the store's thread reads: a write behind it waits some milliseconds."""
PART_ROWS = 256

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Wanted:
    """Which attempts: all, those that the round `step` trained on, or one. `tokens`: with tokens, not only sizes."""

    step: int | None = None
    attempt: int | None = None
    tokens: bool = True


@dataclass(frozen=True)
class Place:
    """The place after a row: its attempt, and its `turn`; 0 for the row of the attempt."""

    attempt: int = 0
    turn: int = 0

    @classmethod
    def of(cls, row: Row) -> Place:
        """Return the place after this row."""
        return cls(row["attempt"], row.get("turn", 0))


ALL = Wanted()
START = Place()


@dataclass(frozen=True)
class Columns:
    """Columns that stores of earlier formats lack."""

    opened: str = "opened"
    pauses: str = "pauses"

    @classmethod
    def of(cls, db: sqlite3.Connection) -> Columns:
        """Return what to read in a store of format 12 or later."""
        turns, episodes = ({row[1] for row in db.execute(f"PRAGMA table_info({one})")} for one in ("turns", "episodes"))
        return cls("opened" if "opened" in turns else "NULL", "pauses" if "pauses" in episodes else "NULL")


NEWEST = Columns()


def attempt_rows(
    db: sqlite3.Connection, wanted: Wanted, after: Place = START, columns: Columns = NEWEST
) -> Iterator[Row]:
    """Yield rows in the order of attempts, and of nodes as they were stored.

    An attempt may be deleted between two calls. It then has fewer rows of nodes than its `nodes`."""
    yield from _nodes(db, wanted, after, columns)
    number = after.attempt
    while (row := _next(db, wanted, number, columns)) is not None:
        number = row["attempt"]
        yield row
        yield from _nodes(db, wanted, Place(number), columns)


def part(store: Store, wanted: Wanted, after: Place) -> list[Row]:
    """Return the next rows of an open store: one at least, if there are any, and few enough for its thread."""
    found: list[Row] = []
    left = PART_BYTES
    for row in attempt_rows(store.connection, wanted, after):
        left -= len(row["tokens"]) if wanted.tokens and "turn" in row else 0
        if found and (left < 0 or len(found) == PART_ROWS):
            break
        found.append(row)
    return found


_ATTEMPT = (
    "id, epoch, idx, sample, environment, started, state, ifnull(reached, cause), reward, metrics, ended, step,"
    " {pauses}, (SELECT COUNT(*) FROM turns WHERE episode = id)"
)
_NAMES = ("sample", "environment", "started", "state", "end", "reward", "metrics", "ended", "round", "pauses", "nodes")
_NODE = "episode, number, node, parent, kind, version, digest, finish, {opened}, stored_at, {content}"
_NODE_NAMES = (
    *("attempt", "turn", "node", "parent", "kind", "version", "digest", "finish", "opened", "stored"),
    *("tokens", "logprobs"),
)


def _next(db: sqlite3.Connection, wanted: Wanted, number: int, columns: Columns) -> Row | None:
    """Return the first wanted attempt after this number."""
    if wanted.attempt is not None:
        if number >= wanted.attempt:
            return None
        number = wanted.attempt - 1
    of_step = "" if wanted.step is None else " AND step = :step"
    row = db.execute(
        f"SELECT {_ATTEMPT.format(pauses=columns.pauses)} FROM episodes WHERE id > :after{of_step} ORDER BY id LIMIT 1",
        {"after": number, "step": wanted.step},
    ).fetchone()
    if row is None or (wanted.attempt is not None and row[0] != wanted.attempt):
        return None
    found, epoch, index, *rest = row
    return {"attempt": found, "prompt": str(prompt_of(db, epoch, index)), **dict(zip(_NAMES, rest, strict=True))}


def _nodes(db: sqlite3.Connection, wanted: Wanted, after: Place, columns: Columns) -> Iterator[Row]:
    # The index of nodes has these numbers. A statement that sorted the rows would read all tokens for each part.
    numbers = db.execute("SELECT number FROM turns WHERE episode = ? AND number > ?", (after.attempt, after.turn))
    content = "tokens, logprobs" if wanted.tokens else "length(tokens) / 4, NULL"
    query = f"SELECT {_NODE.format(opened=columns.opened, content=content)} FROM turns WHERE number = ?"
    for number in sorted(number for (number,) in numbers.fetchall()):
        yield dict(zip(_NODE_NAMES, db.execute(query, (number,)).fetchone(), strict=True))
