"""Asynchronous store: waiting prompts, groups in flight, ready groups, and groups assigned to an update.

It is a part of the state store (`Store.experience`), in the same file and thread. Every method is one transaction.
Methods on a prompt concern its open group and raise `NotOpen` without one.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType

from rljob_runtime.coordinator.store.async_rewind import next_number, set_cursor
from rljob_runtime.coordinator.store.connection import attempts_before, transaction
from rljob_runtime.coordinator.store.kept_samples import KeptSamples
from rljob_runtime.coordinator.store.records import Boundary, Tokens, insert_boundary, terms_text
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
from rljob_runtime.scheduling.round_plan import PromptOutcome

FORGOTTEN_GROUPS, FORGOTTEN_CHUNKS = 64, 16_384
"""Groups per call of `forget`, besides the rest of the last one: about a tenth of a second."""


class NotOpen(LookupError):
    """The prompt has no open group."""


@dataclass(frozen=True)
class KeptSample:
    """A stored response. `tokens`: number of tokens held."""

    key: TrajectoryKey
    attempt: int
    failures: int
    replica: str | None
    finish: FinishReason | None
    reward: float | None
    tokens: int


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


class AsyncStore:
    """Tables of `mode: Asynchronous`, on the store's connection."""

    def __init__(self, db: sqlite3.Connection, kept: KeptSamples) -> None:
        self._db = db
        self._kept_samples = kept

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._db)

    # --- the prompt pool ---

    def in_use(self) -> bool:
        """Whether the store belongs to an asynchronous job."""
        return self._db.execute("SELECT 1 FROM pool").fetchone() is not None

    def cursor(self) -> Cursor:
        """Return the position of the next fresh prompt."""
        row = self._db.execute("SELECT epoch, position FROM pool").fetchone()
        return Cursor(*row) if row else Cursor()

    def requeued(self) -> tuple[PromptKey, ...]:
        """Return the requeued prompts, in the order of their requeueing."""
        rows = self._db.execute(
            "SELECT epoch, idx FROM groups AS g WHERE fate = 'requeued' AND NOT EXISTS"
            " (SELECT 1 FROM groups WHERE epoch = g.epoch AND idx = g.idx AND draw > g.draw) ORDER BY queued"
        ).fetchall()
        return tuple(PromptKey(*row) for row in rows)

    def unsettled(self) -> tuple[PromptKey, ...]:
        """Return the drawn prompts that are neither filtered nor trained on, in the order of their last draw."""
        rows = self._db.execute(
            "SELECT epoch, idx FROM (SELECT epoch, idx, drawn FROM groups WHERE fate IS NULL UNION ALL"
            " SELECT epoch, idx, drawn FROM groups AS g WHERE fate = 'requeued' AND NOT EXISTS"
            " (SELECT 1 FROM groups WHERE epoch = g.epoch AND idx = g.idx AND draw > g.draw)) ORDER BY drawn"
        ).fetchall()
        return tuple(PromptKey(*row) for row in rows)

    def draw(
        self, prompts: Sequence[PromptKey], cursor: Cursor, version: int, replica: str, responses: int
    ) -> dict[TrajectoryKey, int]:
        """Record that a replica draws these prompts with `version`; `cursor` is the one after them.

        Returns attempts above 0 from earlier draws: they keep rising."""
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
        """Record new leases."""
        with self._transaction():
            self._db.executemany(
                f"UPDATE samples SET attempt = ?, replica = ? WHERE {_WHERE}",
                [(lease.attempt, lease.replica, *self._row(key)) for key, lease in leases],
            )

    def move(self, key: TrajectoryKey, lease: Lease, offset: int) -> None:
        """Transfer a response at `offset`: sets the new lease and deletes the source's later tokens."""
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
        """Append tokens."""
        with self._transaction():
            self._append(tokens)

    def finish(self, tokens: Iterable[Tokens], finished: Iterable[Response]) -> None:
        """Append tokens and mark these responses complete."""
        with self._transaction():
            self._append(tokens)
            self._db.executemany(
                f"UPDATE samples SET finish = ? WHERE {_WHERE}",
                [(response.finish_reason.value, *self._row(response.key)) for response in finished],
            )

    def score(self, rewards: Iterable[tuple[TrajectoryKey, float]]) -> tuple[PromptKey, ...]:
        """Record rewards. Returns the prompts whose groups became ready, in the order of their last rewards."""
        ready: list[PromptKey] = []
        with self._transaction():
            number = next_number(self._db, "ready")
            for key, reward in rewards:
                row = self._row(key)
                self._db.execute(
                    f"UPDATE samples SET reward = ?, terms = ? WHERE {_WHERE}",
                    (float(reward), terms_text(reward), *row),
                )
                changed = self._db.execute(
                    "UPDATE groups SET ready = ?1 WHERE epoch = ?2 AND idx = ?3 AND draw = ?4 AND NOT EXISTS"
                    " (SELECT 1 FROM samples WHERE epoch = ?2 AND idx = ?3 AND draw = ?4 AND reward IS NULL)",
                    (number + len(ready), *row[:3]),
                ).rowcount
                if changed:
                    ready.append(key.prompt)
        return tuple(ready)

    def restart(self, key: TrajectoryKey, failures: int) -> None:
        """Restart a response without tokens."""
        with self._transaction():
            row = self._row(key)
            self._kept_samples.keep_failed_sample(key.prompt, row[2], key.sample)
            self._db.execute(f"DELETE FROM experience_chunks WHERE {_WHERE}", row)
            self._db.execute(
                f"UPDATE samples SET failures = ?, finish = NULL, reward = NULL, terms = NULL WHERE {_WHERE}",
                (failures, *row),
            )

    def end(self, prompts: Iterable[PromptKey], outcome: PromptOutcome, reason: str) -> int:
        """Filter or requeue groups. Only the number of their tokens is kept, and returned."""
        tokens = 0
        with self._transaction():
            for prompt in prompts:
                group = self._group(prompt)
                queued = next_number(self._db, "queued") if outcome is PromptOutcome.REQUEUED else None
                self._db.execute(
                    f"UPDATE groups SET fate = ?, reason = ?, queued = ? WHERE {_GROUP}",
                    (outcome.value, reason, queued, *group),
                )
                self._kept_samples.keep_ended(prompt, group[2])
                self._drop_tokens(group)
                tokens += self._db.execute(
                    f"SELECT ifnull(SUM(tokens), 0) FROM samples WHERE {_GROUP}", group
                ).fetchone()[0]
        return tokens

    # --- updates ---

    def assign(self, step: int, prompts: Sequence[PromptKey]) -> None:
        """Assign these ready groups to the update `step`, before the trainer is called."""
        with self._transaction():
            place = self._db.execute("SELECT COUNT(*) FROM groups WHERE step = ?", (step,)).fetchone()[0]
            self._db.executemany(
                f"UPDATE groups SET step = ?, place = ? WHERE {_GROUP}",
                [(step, number, *self._group(prompt)) for number, prompt in enumerate(prompts, place)],
            )

    def assigned(self, step: int) -> tuple[PromptKey, ...]:
        """Return the groups of an update, in the order of assignment."""
        rows = self._db.execute("SELECT epoch, idx FROM groups WHERE step = ? ORDER BY place", (step,)).fetchall()
        return tuple(PromptKey(*row) for row in rows)

    def close_update(
        self,
        boundary: Boundary,
        anchors: Anchors = MappingProxyType({}),
        stale: Mapping[PromptKey, int] = MappingProxyType({}),
    ) -> None:
        """Close the update: its groups are trained on, and the boundary exists, in one transaction.

        `stale`: staleness of its groups. Tokens stay until a checkpoint makes the update final (`forget`)."""
        with self._transaction():
            self._db.execute("UPDATE groups SET fate = 'trained' WHERE step = ?", (boundary.step,))
            self._kept_samples.close_update(boundary.step, stale)
            insert_boundary(self._db, boundary, anchors)

    def forget(self, step: int) -> bool:
        """Delete one batch of tokens up to `step`, of which a checkpoint is kept: no recovery goes back before it.

        A batch has complete groups, so that other calls run between batches. Returns True while there may be more.
        Tokens that a crash leaves are deleted with a later checkpoint's."""
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
        """Return the open groups of these prompts."""
        return tuple(next(self._kept(f"{_GROUP}", self._group(prompt))) for prompt in prompts)

    def open_groups(self) -> tuple[KeptGroup, ...]:
        """Return all groups without an outcome, assigned ones included, in draw order."""
        return tuple(self._kept("fate IS NULL", ()))

    def responses(self, prompt: PromptKey) -> tuple[ScoredResponse, ...]:
        """Return a ready group's responses, by sample."""
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
        """Return the held tokens of a response of an open group."""
        row = self._row(key)
        version, replica, attempt = self._db.execute(
            "SELECT version, samples.replica, attempt FROM samples JOIN groups USING (epoch, idx, draw)"
            f" WHERE {_WHERE}",
            row,
        ).fetchone()
        return Partial(Lease(replica or "", attempt), version, *self._tokens(row))

    def outcomes(self) -> dict[str, int]:
        """Count groups by outcome; `open` for those without. For checks and metrics."""
        return dict(self._db.execute("SELECT ifnull(fate, 'open'), COUNT(*) FROM groups GROUP BY 1").fetchall())

    # --- details ---

    def _group(self, prompt: PromptKey) -> tuple[int, int, int]:
        """Return the open group's row. Raises `NotOpen`."""
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
        """Delete tokens. Returns the number of their chunks."""
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
