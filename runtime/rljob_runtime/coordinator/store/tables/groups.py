"""Groups: the rows of `mode: Asynchronous` as callers read them, and the tokens of their responses.

Its functions run inside the caller's transaction.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_runtime.audit.stored_keys import columns_of, prompt_of
from rljob_runtime.coordinator.store.records import Tokens
from rljob_runtime.coordinator.store.tables import attempts
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.round_plan import REWARD_FAILED

GroupRow = tuple[int, int, int]
"""Epoch, index and draw."""

SampleRow = tuple[int, int, int, int]
"""Epoch, index, draw and sample."""

OF_GROUP = "epoch = ? AND idx = ? AND draw = ?"
OF_SAMPLE = f"{OF_GROUP} AND sample = ?"
"""Conditions of SQL for a `GroupRow` and for a `SampleRow`."""

_HELD = (
    "ifnull(tokens, ifnull((SELECT start + length(c.tokens) / 4 FROM experience_chunks AS c"
    " WHERE c.epoch = samples.epoch AND c.idx = samples.idx AND c.draw = samples.draw AND c.sample = samples.sample"
    " ORDER BY start DESC LIMIT 1), 0))"
)


class NotOpen(LookupError):
    """The prompt has no open group."""


@dataclass(frozen=True)
class KeptSample:
    """A stored response. `tokens`: number of tokens held. `failure`: why its reward failed, if it did."""

    key: TrajectoryKey
    attempt: int
    failures: int
    replica: str | None
    finish: FinishReason | None
    reward: float | None
    tokens: int
    failure: str = REWARD_FAILED


@dataclass(frozen=True)
class KeptGroup:
    """A stored group.

    `replica`: where it was launched. `ready`: its place in the order of ready groups, None before. `step`: the update
    that it is assigned to."""

    prompt: PromptKey
    draw: int
    version: int
    replica: str
    ready: int | None
    step: int | None
    samples: tuple[KeptSample, ...]


def open_group(db: sqlite3.Connection, prompt: PromptKey) -> GroupRow:
    """Return the open group's row. Raises `NotOpen`."""
    columns = columns_of(db, prompt)
    row = db.execute("SELECT draw FROM groups WHERE epoch = ? AND idx = ? AND fate IS NULL", columns).fetchone()
    if row is None:
        raise NotOpen(f"prompt {prompt} has no open group")
    return *columns, row[0]


def open_sample(db: sqlite3.Connection, key: TrajectoryKey) -> SampleRow:
    """Return the row of an open group's response. Raises `NotOpen`."""
    return *open_group(db, key.prompt), key.sample


def kept_groups(db: sqlite3.Connection, where: str, parameters: tuple[int, ...]) -> Iterator[KeptGroup]:
    """Yield the groups of these rows with their responses, in draw order."""
    rows = db.execute(
        f"SELECT epoch, idx, draw, version, replica, ready, step FROM groups WHERE {where} ORDER BY drawn",
        parameters,
    ).fetchall()
    for epoch, index, draw, version, replica, ready, step in rows:
        prompt = prompt_of(db, epoch, index)
        yield KeptGroup(prompt, draw, version, replica, ready, step, tuple(_samples(db, prompt, draw)))


def _samples(db: sqlite3.Connection, prompt: PromptKey, draw: int) -> Iterator[KeptSample]:
    rows = db.execute(
        f"SELECT sample, attempt, failures, replica, finish, reward, {_HELD} FROM samples"
        f" WHERE {OF_GROUP} ORDER BY sample",
        (*columns_of(db, prompt), draw),
    ).fetchall()
    for sample, attempt, failures, replica, finish, reward, tokens in rows:
        key, ended = TrajectoryKey(prompt, sample), FinishReason(finish) if finish is not None else None
        yield KeptSample(key, attempt, failures, replica, ended, reward, tokens, attempts.failure_of(db, key))


def append_tokens(db: sqlite3.Connection, tokens: Iterable[Tokens]) -> None:
    """Append tokens to responses of open groups. Raises `NotOpen`."""
    db.executemany(
        "INSERT INTO experience_chunks VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            (*open_sample(db, new.key), new.start, array("i", new.token_ids), array("f", new.logprobs))
            for new in tokens
            if len(new.token_ids) > 0
        ),
    )


def tokens_of(db: sqlite3.Connection, row: SampleRow) -> tuple[array[int], array[float]]:
    """Return the tokens and log-probabilities of a response."""
    tokens, logprobs = array("i"), array("f")
    for chunk in db.execute(f"SELECT tokens, logprobs FROM experience_chunks WHERE {OF_SAMPLE} ORDER BY start", row):
        tokens.frombytes(chunk[0])
        logprobs.frombytes(chunk[1])
    return tokens, logprobs


def drop_tokens(db: sqlite3.Connection, group: GroupRow) -> int:
    """Delete the tokens of a group, and keep their number. Returns the number of their chunks."""
    db.execute(f"UPDATE samples SET tokens = {_HELD} WHERE {OF_GROUP}", group)
    return db.execute(f"DELETE FROM experience_chunks WHERE {OF_GROUP}", group).rowcount
