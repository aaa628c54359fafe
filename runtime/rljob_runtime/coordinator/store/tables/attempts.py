"""Attempts of episodes: what rounds, updates and rewinds do with them.

Its functions run inside the caller's transaction. A job without environments has no attempts, and each of them ends
after one look at an empty table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence

from rljob_runtime.audit.stored_keys import columns_of, evaluation_epochs
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState
from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, REWARD_FAILED

NUMBERS_A_TERM = 1 << 32
"""More attempts than a coordinator begins in one term."""

NEWEST = (
    "SELECT {columns} FROM episodes WHERE epoch = ? AND idx = ? AND sample = ? AND NOT former ORDER BY id DESC LIMIT 1"
)
"""The newest attempt of a trajectory, in the present draw of its prompt."""


def begin_numbers(db: sqlite3.Connection, term: int) -> None:
    """Start the numbers of a new store above all that coordinators of former terms may have given.

    Runners and agents may still hold such attempts."""
    if term > 1:
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('episodes', ?)", ((term - 1) * NUMBERS_A_TERM,))


def there_are_any(db: sqlite3.Connection) -> bool:
    """Whether the job has attempts."""
    return db.execute("SELECT 1 FROM episodes LIMIT 1").fetchone() is not None


def set_aside(db: sqlite3.Connection, prompts: Collection[PromptKey]) -> None:
    """Make all attempts of these prompts former ones: their round is closed, or their group has ended."""
    if not there_are_any(db):
        return
    for prompt in prompts:
        columns = columns_of(db, prompt)
        db.execute("UPDATE episodes SET former = 1 WHERE epoch = ? AND idx = ?", columns)
    drop_bodies(db, prompts)


def failure_of(db: sqlite3.Connection, key: TrajectoryKey) -> str:
    """Return why a response that was restarted has no reward, by its newest attempt that ended by itself."""
    row = db.execute(
        "SELECT state FROM episodes WHERE epoch = ? AND idx = ? AND sample = ? AND state IS NOT NULL"
        " AND cause IS NOT ? ORDER BY id DESC LIMIT 1",
        (*columns_of(db, key.prompt), key.sample, AbortCause.NOT_NEEDED.value),
    ).fetchone()
    return ENVIRONMENT_FAILED if row is not None and row[0] == EndState.ABORTED.value else REWARD_FAILED


def set_aside_ended(db: sqlite3.Connection, key: TrajectoryKey) -> None:
    """Make the ended attempts of a response former ones: it is restarted without tokens."""
    if there_are_any(db):
        db.execute(
            "UPDATE episodes SET former = 1 WHERE epoch = ? AND idx = ? AND sample = ? AND state IS NOT NULL",
            (*columns_of(db, key.prompt), key.sample),
        )


def set_aside_evaluation(db: sqlite3.Connection, step: int, name: str) -> None:
    """Make the attempts of an evaluation former ones: it has ended, or is generated again under other settings."""
    if (epochs := evaluation_epochs(db).get(name)) is not None:
        db.execute("UPDATE episodes SET former = 1 WHERE epoch = ?", (epochs[step],))
        _drop_bodies(db, "epoch = ?", (epochs[step],))


def set_aside_other_evaluations(db: sqlite3.Connection, step: int, names: Collection[str]) -> None:
    """Make the attempts of all evaluations but these of `step` former ones: the others are never continued."""
    for name, epochs in evaluation_epochs(db).items():
        open_one = epochs[step] if name in names else None
        db.execute(
            "UPDATE episodes SET former = 1 WHERE epoch BETWEEN ? AND ? AND epoch IS NOT ? AND NOT former",
            (epochs[0], epochs[-1], open_one),
        )


def keep_trained(db: sqlite3.Connection, step: int, trained: Mapping[TrajectoryKey, bytes]) -> None:
    """Record the digests of what the update `step` trained on, at the newest attempts of these responses.

    A response without an attempt that completed or was truncated gets no record, and the audit finds it."""
    if not there_are_any(db):
        return
    for key, digest in trained.items():
        columns = (*columns_of(db, key.prompt), key.sample)
        row = db.execute(NEWEST.format(columns="id, state"), columns).fetchone()
        if row is not None and row[1] in ("completed", "truncated"):
            db.execute("UPDATE episodes SET step = ?, loss = ? WHERE id = ?", (step, digest, row[0]))


def drop_bodies(db: sqlite3.Connection, prompts: Iterable[PromptKey]) -> None:
    """Delete the requests of these prompts' attempts, which ask no more. Samples are chosen before."""
    if there_are_any(db):
        for prompt in prompts:
            _drop_bodies(db, "epoch = ? AND idx = ?", columns_of(db, prompt))


def _drop_bodies(db: sqlite3.Connection, where: str, parameters: Sequence[int]) -> None:
    """Delete the requests, tools' answers and stated answers of attempts that ask no more.

    Most of that repeats what was said before it."""
    for table, column in (("turns", "body"), ("tool_calls", "content")):
        db.execute(
            f"UPDATE {table} SET {column} = NULL WHERE {column} IS NOT NULL"
            f" AND episode IN (SELECT id FROM episodes WHERE {where})",
            parameters,
        )
    db.execute(f"UPDATE episodes SET answer = NULL WHERE answer IS NOT NULL AND {where}", parameters)


def undo_after(db: sqlite3.Connection, step: int) -> None:
    """Undo the updates after `step`, before their rounds are deleted.

    Attempts of deleted rounds stay, as former ones: their prompts are drawn again, and later weights are evaluated
    again. Attempts of groups that are given back stay as they are."""
    db.execute("UPDATE episodes SET step = NULL, loss = NULL WHERE step > ?", (step,))
    if there_are_any(db):
        db.execute(
            "UPDATE episodes SET former = 1 WHERE (epoch, idx) IN (SELECT epoch, idx FROM prompts WHERE step > ?)",
            (step,),
        )
        for epochs in evaluation_epochs(db).values():
            db.execute("UPDATE episodes SET former = 1 WHERE epoch BETWEEN ? AND ?", (epochs[step] + 1, epochs[-1]))


def drop_all(db: sqlite3.Connection) -> None:
    """Delete all attempts, for a new history. Their numbers are not given again."""
    db.execute("DELETE FROM episodes")


def prune_round(db: sqlite3.Connection, step: int) -> None:
    """Delete the attempts of a round's prompts, but for those that a later round drew again."""
    if there_are_any(db):
        db.execute(
            "DELETE FROM episodes WHERE (epoch, idx) IN (SELECT epoch, idx FROM prompts AS p WHERE step = ? AND NOT"
            " EXISTS (SELECT 1 FROM prompts WHERE epoch = p.epoch AND idx = p.idx AND step > p.step))",
            (step,),
        )


def prune_evaluations(db: sqlite3.Connection, step: int) -> None:
    """Delete the attempts of evaluations of the weights up to `step`. Those of an open evaluation are not deleted."""
    for epochs in evaluation_epochs(db).values():
        db.execute(
            "DELETE FROM episodes WHERE epoch BETWEEN ? AND ? AND (former OR state IS NOT NULL)",
            (epochs[0], epochs[step]),
        )


def prune_prompts(db: sqlite3.Connection, prompts: str) -> None:
    """Delete the attempts of the prompts in a table of (epoch, idx)."""
    if there_are_any(db):
        db.execute(f"DELETE FROM episodes WHERE (epoch, idx) IN (SELECT epoch, idx FROM {prompts})")
