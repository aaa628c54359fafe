"""The memory of `mode: Asynchronous`: which prompts wait, which groups are under way, ready, assigned to an update.

A part of the state store (`Store.experience`), in the same file and thread. Every method is one transaction. What is
told of a prompt concerns its open group; without one it is refused with `NotOpen`.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType

from rljob_runtime.coordinator.store.async_rewind import next_number, set_cursor
from rljob_runtime.coordinator.store.connection import attempts_before, transaction
from rljob_runtime.coordinator.store.records import Boundary, Tokens, insert_boundary
from rljob_runtime.protocols.rewards import Anchors
from rljob_runtime.protocols.trajectory import (
    Cursor,
    FinishReason,
    Lease,
    PromptKey,
    Response,
    ScoredResponse,
    TrajectoryKey,
)
from rljob_runtime.scheduling.partial_responses import Partial
from rljob_runtime.scheduling.round import PromptOutcome

FORGOTTEN_GROUPS, FORGOTTEN_CHUNKS = 64, 16_384
"""What one piece of `forget` drops at most, but for the rest of its last group: about a tenth of a second."""


class NotOpen(LookupError):
    """The prompt has no open group."""


@dataclass(frozen=True)
class KeptSample:
    """`tokens`: how many are held."""

    key: TrajectoryKey
    attempt: int
    failures: int
    replica: str | None
    finish: FinishReason | None
    reward: float | None
    tokens: int


@dataclass(frozen=True)
class KeptGroup:
    """`replica`: where it was launched. `ready`: its place in the order in which groups became ready; None before.
    `step`: the update that it is assigned to."""

    prompt: PromptKey
    draw: int
    version: int
    replica: str
    ready: int | None
    step: int | None
    samples: tuple[KeptSample, ...]


class AsyncStore:
    """On the store's own connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._db)

    # --- the prompt pool ---

    def in_use(self) -> bool:
        """Whether the store is of an asynchronous job."""
        return self._db.execute("SELECT 1 FROM pool").fetchone() is not None

    def cursor(self) -> Cursor:
        """Where the next fresh prompt is drawn."""
        row = self._db.execute("SELECT epoch, position FROM pool").fetchone()
        return Cursor(*row) if row else Cursor()

    def requeued(self) -> tuple[PromptKey, ...]:
        """The prompts that wait to be drawn again, in the order in which they were requeued."""
        rows = self._db.execute(
            "SELECT epoch, idx FROM groups AS g WHERE fate = 'requeued' AND NOT EXISTS"
            " (SELECT 1 FROM groups WHERE epoch = g.epoch AND idx = g.idx AND draw > g.draw) ORDER BY queued"
        ).fetchall()
        return tuple(PromptKey(*row) for row in rows)

    def unsettled(self) -> tuple[PromptKey, ...]:
        """The prompts that were drawn and are neither filtered nor trained on, in the order of their last draw."""
        rows = self._db.execute(
            "SELECT epoch, idx FROM (SELECT epoch, idx, drawn FROM groups WHERE fate IS NULL UNION ALL"
            " SELECT epoch, idx, drawn FROM groups AS g WHERE fate = 'requeued' AND NOT EXISTS"
            " (SELECT 1 FROM groups WHERE epoch = g.epoch AND idx = g.idx AND draw > g.draw)) ORDER BY drawn"
        ).fetchall()
        return tuple(PromptKey(*row) for row in rows)

    def draw(
        self, prompts: Sequence[PromptKey], cursor: Cursor, version: int, replica: str, responses: int
    ) -> dict[TrajectoryKey, int]:
        """These prompts, requeued or fresh ones, are given to a replica that generates with `version`; `cursor` is the
        one after them. The attempts that are known of earlier draws come back, where above 0: they go on rising."""
        known: dict[TrajectoryKey, int] = {}
        with self._transaction():
            set_cursor(self._db, cursor)
            for drawn, prompt in enumerate(prompts, next_number(self._db, "drawn")):
                attempts = dict.fromkeys(range(responses), attempts_before(self._db)) | self._attempts(prompt)
                known |= {TrajectoryKey(prompt, sample): attempt for sample, attempt in attempts.items() if attempt}
                draw = self._draws(prompt)
                self._db.execute(
                    "INSERT INTO groups (epoch, idx, draw, drawn, version, replica) VALUES (?, ?, ?, ?, ?, ?)",
                    (prompt.epoch, prompt.index, draw, drawn, version, replica),
                )
                self._db.executemany(
                    "INSERT INTO samples (epoch, idx, draw, sample, attempt) VALUES (?, ?, ?, ?, ?)",
                    [(prompt.epoch, prompt.index, draw, one, attempts[one]) for one in range(responses)],
                )
        return known

    # --- groups in flight ---

    def launched(self, leases: Iterable[tuple[TrajectoryKey, Lease]]) -> None:
        """These responses have new leases."""
        with self._transaction():
            self._db.executemany(
                f"UPDATE samples SET attempt = ?, replica = ? WHERE {_WHERE}",
                [(lease.attempt, lease.replica, *self._row(key)) for key, lease in leases],
            )

    def move(self, key: TrajectoryKey, lease: Lease, offset: int) -> None:
        """A response goes on elsewhere from `offset`: in one stroke the lease is the new one, and what its source made
        from there on is gone."""
        with self._transaction():
            row = self._row(key)
            self._db.execute(
                f"UPDATE samples SET attempt = ?, replica = ? WHERE {_WHERE}", (lease.attempt, lease.replica, *row)
            )
            self._db.execute(f"DELETE FROM experience_chunks WHERE {_WHERE} AND start >= ?", (*row, offset))
            self._db.execute(
                "UPDATE experience_chunks SET tokens = substr(tokens, 1, 4 * (?1 - start)),"
                " logprobs = substr(logprobs, 1, 4 * (?1 - start)) WHERE epoch = ?2 AND idx = ?3 AND draw = ?4"
                " AND sample = ?5 AND start + length(tokens) / 4 > ?1",
                (offset, *row),
            )

    def append(self, tokens: Iterable[Tokens]) -> None:
        """Tokens as they came."""
        with self._transaction():
            self._append(tokens)

    def finish(self, tokens: Iterable[Tokens], finished: Iterable[Response]) -> None:
        """These responses are whole; `tokens` are their last ones, and others."""
        with self._transaction():
            self._append(tokens)
            self._db.executemany(
                f"UPDATE samples SET finish = ? WHERE {_WHERE}",
                [(response.finish_reason.value, *self._row(response.key)) for response in finished],
            )

    def score(self, rewards: Iterable[tuple[TrajectoryKey, float]]) -> tuple[PromptKey, ...]:
        """Rewards came. Returns the prompts whose groups are ready by them, in the order of their last rewards."""
        ready: list[PromptKey] = []
        with self._transaction():
            number = next_number(self._db, "ready")
            for key, reward in rewards:
                row = self._row(key)
                self._db.execute(f"UPDATE samples SET reward = ? WHERE {_WHERE}", (reward, *row))
                changed = self._db.execute(
                    "UPDATE groups SET ready = ?1 WHERE epoch = ?2 AND idx = ?3 AND draw = ?4 AND NOT EXISTS"
                    " (SELECT 1 FROM samples WHERE epoch = ?2 AND idx = ?3 AND draw = ?4 AND reward IS NULL)",
                    (number + len(ready), *row[:3]),
                ).rowcount
                if changed:
                    ready.append(key.prompt)
        return tuple(ready)

    def restart(self, key: TrajectoryKey, failures: int) -> None:
        """A response is generated again from nothing."""
        with self._transaction():
            row = self._row(key)
            self._db.execute(f"DELETE FROM experience_chunks WHERE {_WHERE}", row)
            self._db.execute(
                f"UPDATE samples SET failures = ?, finish = NULL, reward = NULL WHERE {_WHERE}", (failures, *row)
            )

    def end(self, prompts: Iterable[PromptKey], fate: PromptOutcome, reason: str) -> int:
        """Their groups are filtered or requeued: they are not trained on. Of the tokens only their number stays, which
        is returned."""
        tokens = 0
        with self._transaction():
            for prompt in prompts:
                group = self._group(prompt)
                queued = next_number(self._db, "queued") if fate is PromptOutcome.REQUEUED else None
                self._db.execute(
                    f"UPDATE groups SET fate = ?, reason = ?, queued = ? WHERE {_GROUP}",
                    (fate.value, reason, queued, *group),
                )
                self._drop_tokens(group)

                tokens += self._db.execute(
                    f"SELECT ifnull(SUM(tokens), 0) FROM samples WHERE {_GROUP}", group
                ).fetchone()[0]
        return tokens

    # --- updates ---

    def assign(self, step: int, prompts: Sequence[PromptKey]) -> None:
        """These ready groups are what the next update, `step`, trains on; before the trainer is called."""
        with self._transaction():
            place = self._db.execute("SELECT COUNT(*) FROM groups WHERE step = ?", (step,)).fetchone()[0]
            self._db.executemany(
                f"UPDATE groups SET step = ?, place = ? WHERE {_GROUP}",
                [(step, number, *self._group(prompt)) for number, prompt in enumerate(prompts, place)],
            )

    def assigned(self, step: int) -> tuple[PromptKey, ...]:
        """What an update trains on, or has trained on, in the order in which it was assigned."""
        rows = self._db.execute("SELECT epoch, idx FROM groups WHERE step = ? ORDER BY place", (step,)).fetchall()
        return tuple(PromptKey(*row) for row in rows)

    def close_update(self, boundary: Boundary, anchors: Anchors = MappingProxyType({})) -> None:
        """The update is done: its groups are trained on, and the boundary is there, in one stroke. Their tokens stay
        until a checkpoint has made that final (`forget`)."""
        with self._transaction():
            self._db.execute("UPDATE groups SET fate = 'trained' WHERE step = ?", (boundary.step,))
            insert_boundary(self._db, boundary, anchors)

    def forget(self, step: int) -> bool:
        """A checkpoint of `step` is kept: nobody goes back before it, so the tokens up to it are needed no more. One
        piece of them goes, whole groups, so that others have their turn between two pieces. True while there may be
        more. What a crash leaves over nobody asks for, and it goes with a later checkpoint's."""
        chunks = 0
        with self._transaction():
            groups = self._db.execute(
                "SELECT DISTINCT epoch, idx, draw FROM samples JOIN groups USING (epoch, idx, draw)"
                " WHERE tokens IS NULL AND fate = 'trained' AND step <= ? LIMIT ?",
                (step, FORGOTTEN_GROUPS),
            ).fetchall()
            for group in groups:
                chunks += self._drop_tokens(group)
                if chunks >= FORGOTTEN_CHUNKS:
                    return True
        return len(groups) == FORGOTTEN_GROUPS

    # --- what is held ---

    def groups(self, prompts: Sequence[PromptKey]) -> tuple[KeptGroup, ...]:
        """The open groups of these prompts."""
        return tuple(next(self._kept(f"{_GROUP}", self._group(prompt))) for prompt in prompts)

    def open_groups(self) -> tuple[KeptGroup, ...]:
        """All groups without a fate, assigned ones included, in the order of their draws."""
        return tuple(self._kept("fate IS NULL", ()))

    def responses(self, prompt: PromptKey) -> tuple[ScoredResponse, ...]:
        """Of a ready group, in the order of their samples."""
        (group,) = self.groups((prompt,))
        found = []
        for sample in group.samples:
            tokens, logprobs = self._tokens(self._row(sample.key))
            assert sample.finish is not None, f"{sample.key} is not finished"
            assert sample.reward is not None, f"{sample.key} is not scored"
            response = Response(
                key=sample.key,
                attempt=sample.attempt,
                weight_version=group.version,
                token_ids=tokens,
                logprobs=logprobs,
                finish_reason=sample.finish,
                replica=sample.replica or "",
            )
            found.append(ScoredResponse(response, sample.reward))
        return tuple(found)

    def partial(self, key: TrajectoryKey) -> Partial:
        """What is held of a response of an open group."""
        row = self._row(key)
        version, replica, attempt = self._db.execute(
            "SELECT version, samples.replica, attempt FROM samples JOIN groups USING (epoch, idx, draw)"
            f" WHERE {_WHERE}",
            row,
        ).fetchone()
        return Partial(Lease(replica or "", attempt), version, *self._tokens(row))

    def outcomes(self) -> dict[str, int]:
        """How many groups ended how; `open` for those that have not. For checks and figures."""
        return dict(self._db.execute("SELECT ifnull(fate, 'open'), COUNT(*) FROM groups GROUP BY 1").fetchall())

    # --- details ---

    def _group(self, prompt: PromptKey) -> tuple[int, int, int]:
        """The open group's row. Raises `NotOpen`."""
        row = self._db.execute(
            "SELECT draw FROM groups WHERE epoch = ? AND idx = ? AND fate IS NULL", (prompt.epoch, prompt.index)
        ).fetchone()
        if row is None:
            raise NotOpen(f"prompt {prompt} has no open group")
        return prompt.epoch, prompt.index, row[0]

    def _row(self, key: TrajectoryKey) -> tuple[int, int, int, int]:
        return *self._group(key.prompt), key.sample

    def _draws(self, prompt: PromptKey) -> int:
        return self._db.execute(
            "SELECT COUNT(*) FROM groups WHERE epoch = ? AND idx = ?", (prompt.epoch, prompt.index)
        ).fetchone()[0]

    def _attempts(self, prompt: PromptKey) -> dict[int, int]:
        rows = self._db.execute(
            "SELECT sample, MAX(attempt) FROM samples WHERE epoch = ? AND idx = ? GROUP BY sample",
            (prompt.epoch, prompt.index),
        ).fetchall()
        return dict(rows)

    def _append(self, tokens: Iterable[Tokens]) -> None:
        self._db.executemany(
            "INSERT INTO experience_chunks VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                (*self._row(new.key), new.start, array("i", new.token_ids), array("f", new.logprobs))
                for new in tokens
                if len(new.token_ids) > 0
            ),
        )

    def _tokens(self, row: tuple[int, int, int, int]) -> tuple[array[int], array[float]]:
        tokens, logprobs = array("i"), array("f")
        for chunk in self._db.execute(
            f"SELECT tokens, logprobs FROM experience_chunks WHERE {_WHERE} ORDER BY start", row
        ):
            tokens.frombytes(chunk[0])
            logprobs.frombytes(chunk[1])
        return tokens, logprobs

    def _drop_tokens(self, group: tuple[int, int, int]) -> int:
        """How many chunks they were in."""
        self._db.execute(f"UPDATE samples SET tokens = {_HELD} WHERE {_GROUP}", group)
        return self._db.execute(f"DELETE FROM experience_chunks WHERE {_GROUP}", group).rowcount

    def _kept(self, where: str, parameters: tuple[int, ...]) -> Iterator[KeptGroup]:
        rows = self._db.execute(
            f"SELECT epoch, idx, draw, version, replica, ready, step FROM groups WHERE {where} ORDER BY drawn",
            parameters,
        ).fetchall()
        for epoch, index, draw, version, replica, ready, step in rows:
            prompt = PromptKey(epoch, index)
            yield KeptGroup(prompt, draw, version, replica, ready, step, tuple(self._samples(prompt, draw)))

    def _samples(self, prompt: PromptKey, draw: int) -> Iterator[KeptSample]:
        rows = self._db.execute(
            f"SELECT sample, attempt, failures, replica, finish, reward, {_HELD} FROM samples"
            f" WHERE {_GROUP} ORDER BY sample",
            (prompt.epoch, prompt.index, draw),
        ).fetchall()
        for sample, attempt, failures, replica, finish, reward, tokens in rows:
            ended = FinishReason(finish) if finish is not None else None
            yield KeptSample(TrajectoryKey(prompt, sample), attempt, failures, replica, ended, reward, tokens)


_GROUP = "epoch = ? AND idx = ? AND draw = ?"
_WHERE = f"{_GROUP} AND sample = ?"
_HELD = (
    "ifnull(tokens, ifnull((SELECT start + length(c.tokens) / 4 FROM experience_chunks AS c"
    " WHERE c.epoch = samples.epoch AND c.idx = samples.idx AND c.draw = samples.draw AND c.sample = samples.sample"
    " ORDER BY start DESC LIMIT 1), 0))"
)
