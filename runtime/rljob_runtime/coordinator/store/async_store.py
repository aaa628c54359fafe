"""Asynchronous store: waiting prompts, groups in flight, ready groups, and groups assigned to an update.

It is a part of the state store (`Store.experience`), in the same file and thread. Every method is one transaction.
Methods on a prompt concern its open group and raise `NotOpen` without one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from rljob_runtime.audit.stored_keys import columns_of, cursor_of, prompt_of, training_columns_of
from rljob_runtime.coordinator.store.async_rewind import next_number, set_cursor
from rljob_runtime.coordinator.store.connection import attempts_before, transaction
from rljob_runtime.coordinator.store.records import Boundary, Tokens, terms_text
from rljob_runtime.coordinator.store.tables import attempts
from rljob_runtime.coordinator.store.tables.boundaries import insert_boundary
from rljob_runtime.coordinator.store.tables.groups import (
    OF_GROUP,
    OF_SAMPLE,
    KeptGroup,
    append_tokens,
    drop_tokens,
    kept_groups,
    open_group,
    open_sample,
    tokens_of,
)
from rljob_runtime.coordinator.store.tables.kept_samples import Failed, KeptSamples
from rljob_runtime.protocols.rewards import Anchors
from rljob_runtime.protocols.trajectory import (
    Cursor,
    Lease,
    PromptKey,
    Response,
    ScoredResponse,
    TrajectoryKey,
)
from rljob_runtime.scheduling.partial_responses import Partial
from rljob_runtime.scheduling.round_plan import REWARD_FAILED, PromptOutcome

FORGOTTEN_GROUPS, FORGOTTEN_CHUNKS = 64, 16_384
"""Groups per call of `forget`, besides the rest of the last one: about a tenth of a second."""


class AsyncStore:
    """Tables of `mode: Asynchronous`, on the store's connection."""

    def __init__(self, db: sqlite3.Connection, kept: KeptSamples) -> None:
        self._db = db
        self._kept_samples = kept

    # --- the prompt pool ---

    def in_use(self) -> bool:
        """Whether the store belongs to an asynchronous job."""
        return self._db.execute("SELECT 1 FROM pool").fetchone() is not None

    def cursor(self) -> Cursor:
        """Return the position of the next fresh prompt."""
        row = self._db.execute("SELECT epoch, position, sources FROM pool").fetchone()
        return cursor_of(*row) if row else Cursor()

    def requeued(self) -> tuple[PromptKey, ...]:
        """Return the requeued prompts, in the order of their requeueing."""
        rows = self._db.execute(
            "SELECT epoch, idx FROM groups AS g WHERE fate = 'requeued' AND NOT EXISTS"
            " (SELECT 1 FROM groups WHERE epoch = g.epoch AND idx = g.idx AND draw > g.draw) ORDER BY queued"
        ).fetchall()
        return tuple(prompt_of(self._db, *row) for row in rows)

    def unsettled(self) -> tuple[PromptKey, ...]:
        """Return the drawn prompts that are neither filtered nor trained on, in the order of their last draw."""
        rows = self._db.execute(
            "SELECT epoch, idx FROM (SELECT epoch, idx, drawn FROM groups WHERE fate IS NULL UNION ALL"
            " SELECT epoch, idx, drawn FROM groups AS g WHERE fate = 'requeued' AND NOT EXISTS"
            " (SELECT 1 FROM groups WHERE epoch = g.epoch AND idx = g.idx AND draw > g.draw)) ORDER BY drawn"
        ).fetchall()
        return tuple(prompt_of(self._db, *row) for row in rows)

    def draw(
        self, prompts: Sequence[PromptKey], cursor: Cursor, version: int, replica: str, responses: int
    ) -> dict[TrajectoryKey, int]:
        """Record that a replica draws these prompts with `version`; `cursor` is the one after them.

        Returns attempts above 0 from earlier draws: they keep rising."""
        known: dict[TrajectoryKey, int] = {}
        with transaction(self._db):
            set_cursor(self._db, cursor)
            for drawn, prompt in enumerate(prompts, next_number(self._db, "drawn")):
                attempts = dict.fromkeys(range(responses), attempts_before(self._db)) | self._attempts(prompt)
                known |= {TrajectoryKey(prompt, sample): attempt for sample, attempt in attempts.items() if attempt}
                draw, columns = self._draws(prompt), training_columns_of(self._db, prompt)
                self._db.execute(
                    "INSERT INTO groups (epoch, idx, draw, drawn, version, replica) VALUES (?, ?, ?, ?, ?, ?)",
                    (*columns, draw, drawn, version, replica),
                )
                self._db.executemany(
                    "INSERT INTO samples (epoch, idx, draw, sample, attempt) VALUES (?, ?, ?, ?, ?)",
                    [(*columns, draw, one, attempts[one]) for one in range(responses)],
                )
        return known

    # --- groups in flight ---

    def launched(self, leases: Iterable[tuple[TrajectoryKey, Lease]]) -> None:
        """Record new leases."""
        with transaction(self._db):
            self._db.executemany(
                f"UPDATE samples SET attempt = ?, replica = ? WHERE {OF_SAMPLE}",
                [(lease.attempt, lease.replica, *open_sample(self._db, key)) for key, lease in leases],
            )

    def move(self, key: TrajectoryKey, lease: Lease, offset: int) -> None:
        """Transfer a response at `offset`: sets the new lease and deletes the source's later tokens."""
        with transaction(self._db):
            row = open_sample(self._db, key)
            self._db.execute(
                f"UPDATE samples SET attempt = ?, replica = ? WHERE {OF_SAMPLE}", (lease.attempt, lease.replica, *row)
            )
            self._db.execute(f"DELETE FROM experience_chunks WHERE {OF_SAMPLE} AND start >= ?", (*row, offset))
            self._db.execute(
                "UPDATE experience_chunks SET tokens = substr(tokens, 1, 4 * (?1 - start)),"
                " logprobs = substr(logprobs, 1, 4 * (?1 - start)) WHERE epoch = ?2 AND idx = ?3 AND draw = ?4"
                " AND sample = ?5 AND start + length(tokens) / 4 > ?1",
                (offset, *row),
            )

    def append(self, tokens: Iterable[Tokens]) -> None:
        """Append tokens."""
        with transaction(self._db):
            append_tokens(self._db, tokens)

    def finish(self, tokens: Iterable[Tokens], finished: Iterable[Response]) -> None:
        """Append tokens and mark these responses complete."""
        with transaction(self._db):
            append_tokens(self._db, tokens)
            self._db.executemany(
                f"UPDATE samples SET finish = ? WHERE {OF_SAMPLE}",
                [(response.finish_reason.value, *open_sample(self._db, response.key)) for response in finished],
            )

    def score(self, rewards: Iterable[tuple[TrajectoryKey, float]]) -> tuple[PromptKey, ...]:
        """Record rewards. Returns the prompts whose groups became ready, in the order of their last rewards."""
        ready: list[PromptKey] = []
        with transaction(self._db):
            number = next_number(self._db, "ready")
            for key, reward in rewards:
                row = open_sample(self._db, key)
                self._db.execute(
                    f"UPDATE samples SET reward = ?, terms = ? WHERE {OF_SAMPLE}",
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

    def restart(self, key: TrajectoryKey, failures: int, cause: str = "", reason: str = REWARD_FAILED) -> None:
        """Restart a response without tokens. `cause` and `reason`: the failure of its reward."""
        with transaction(self._db):
            row = open_sample(self._db, key)
            self._kept_samples.keep_failed_sample(key.prompt, row[2], key.sample, Failed(cause, reason))
            self._db.execute(f"DELETE FROM experience_chunks WHERE {OF_SAMPLE}", row)
            self._db.execute(
                f"UPDATE samples SET failures = ?, finish = NULL, reward = NULL, terms = NULL WHERE {OF_SAMPLE}",
                (failures, *row),
            )
            attempts.set_aside_ended(self._db, key)

    def end(
        self, prompts: Iterable[PromptKey], outcome: PromptOutcome, reason: str, cursor: Cursor | None = None
    ) -> int:
        """Filter or requeue groups. Only the number of their tokens is kept, and returned.

        `cursor`: the pool's, if its counts change with this."""
        tokens = 0
        with transaction(self._db):
            if cursor is not None:
                set_cursor(self._db, cursor)
            for prompt in prompts:
                group = open_group(self._db, prompt)
                queued = next_number(self._db, "queued") if outcome is PromptOutcome.REQUEUED else None
                ended = self._last_update() + 1 if outcome is PromptOutcome.FILTERED else None
                self._db.execute(
                    f"UPDATE groups SET fate = ?, reason = ?, queued = ?, ended = ? WHERE {OF_GROUP}",
                    (outcome.value, reason, queued, ended, *group),
                )
                self._kept_samples.keep_ended(prompt, group[2])
                drop_tokens(self._db, group)
                attempts.set_aside(self._db, (prompt,))
                tokens += self._db.execute(
                    f"SELECT ifnull(SUM(tokens), 0) FROM samples WHERE {OF_GROUP}", group
                ).fetchone()[0]
        return tokens

    # --- updates ---

    def assign(self, step: int, prompts: Sequence[PromptKey]) -> None:
        """Assign these ready groups to the update `step`, before the trainer is called."""
        with transaction(self._db):
            place = self._db.execute("SELECT COUNT(*) FROM groups WHERE step = ?", (step,)).fetchone()[0]
            self._db.executemany(
                f"UPDATE groups SET step = ?, place = ? WHERE {OF_GROUP}",
                [(step, number, *open_group(self._db, prompt)) for number, prompt in enumerate(prompts, place)],
            )

    def assigned(self, step: int) -> tuple[PromptKey, ...]:
        """Return the groups of an update, in the order of assignment."""
        rows = self._db.execute("SELECT epoch, idx FROM groups WHERE step = ? ORDER BY place", (step,)).fetchall()
        return tuple(prompt_of(self._db, *row) for row in rows)

    def close_update(
        self,
        boundary: Boundary,
        anchors: Anchors = MappingProxyType({}),
        stale: Mapping[PromptKey, int] = MappingProxyType({}),
        trained: Mapping[TrajectoryKey, bytes] = MappingProxyType({}),
    ) -> None:
        """Close the update: its groups are trained on, and the boundary exists, in one transaction.

        `stale`: staleness of its groups. `trained`: digests of its episodes, see `trained_digests`. Tokens stay until a
        checkpoint makes the update final (`forget`)."""
        with transaction(self._db):
            attempts.keep_trained(self._db, boundary.step, trained)
            self._db.execute("UPDATE groups SET fate = 'trained' WHERE step = ?", (boundary.step,))
            self._kept_samples.close_update(boundary.step, stale)
            attempts.drop_bodies(self._db, self.assigned(boundary.step))
            insert_boundary(self._db, boundary, anchors)

    def count_late(self) -> int | None:
        """Count the groups that were filtered after the last update in it. Return the update if there are any."""
        with transaction(self._db):
            last = self._last_update()
            late = self._db.execute(
                "UPDATE groups SET ended = ?1 WHERE fate = 'filtered' AND ended > ?1 AND ?1 > 0", (last,)
            ).rowcount
        return last if late else None

    def forget(self, step: int) -> bool:
        """Delete one batch of tokens up to `step`, of which a checkpoint is kept: no recovery goes back before it.

        A batch has complete groups, so that other calls run between batches. Returns True while there may be more.
        Tokens that a crash leaves are deleted with a later checkpoint's."""
        chunks = 0
        with transaction(self._db):
            groups = self._db.execute(
                "SELECT DISTINCT epoch, idx, draw FROM samples JOIN groups USING (epoch, idx, draw)"
                " WHERE tokens IS NULL AND fate = 'trained' AND step <= ? LIMIT ?",
                (step, FORGOTTEN_GROUPS),
            ).fetchall()
            for group in groups:
                chunks += drop_tokens(self._db, group)
                if chunks >= FORGOTTEN_CHUNKS:
                    return True
        return len(groups) == FORGOTTEN_GROUPS

    # --- what is held ---

    def groups(self, prompts: Sequence[PromptKey]) -> tuple[KeptGroup, ...]:
        """Return the open groups of these prompts."""
        return tuple(next(kept_groups(self._db, OF_GROUP, open_group(self._db, prompt))) for prompt in prompts)

    def open_groups(self) -> tuple[KeptGroup, ...]:
        """Return all groups without an outcome, assigned ones included, in draw order."""
        return tuple(kept_groups(self._db, "fate IS NULL", ()))

    def responses(self, prompt: PromptKey) -> tuple[ScoredResponse, ...]:
        """Return a ready group's responses, by sample."""
        (group,) = self.groups((prompt,))
        found = []
        for sample in group.samples:
            tokens, logprobs = tokens_of(self._db, open_sample(self._db, sample.key))
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
        row = open_sample(self._db, key)
        version, replica, attempt = self._db.execute(
            "SELECT version, samples.replica, attempt FROM samples JOIN groups USING (epoch, idx, draw)"
            f" WHERE {OF_SAMPLE}",
            row,
        ).fetchone()
        return Partial(Lease(replica or "", attempt), version, *tokens_of(self._db, row))

    def outcomes(self) -> dict[str, int]:
        """Count groups by outcome; `open` for those without. For checks and metrics."""
        return dict(self._db.execute("SELECT ifnull(fate, 'open'), COUNT(*) FROM groups GROUP BY 1").fetchall())

    # --- details ---

    def _last_update(self) -> int:
        return int(self._db.execute("SELECT ifnull(MAX(step), 0) FROM boundaries").fetchone()[0])

    def _draws(self, prompt: PromptKey) -> int:
        (draws,) = self._db.execute(
            "SELECT COUNT(*) FROM groups WHERE epoch = ? AND idx = ?", columns_of(self._db, prompt)
        ).fetchone()
        return int(draws)

    def _attempts(self, prompt: PromptKey) -> dict[int, int]:
        rows = self._db.execute(
            "SELECT sample, MAX(attempt) FROM samples WHERE epoch = ? AND idx = ? GROUP BY sample",
            columns_of(self._db, prompt),
        ).fetchall()
        return dict(rows)
