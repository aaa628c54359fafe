"""Trajectories: the responses of rounds, their tokens and their assignment to a training step."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rljob_runtime.audit.stored_keys import columns_of, prompt_of
from rljob_runtime.coordinator.store.connection import transaction
from rljob_runtime.coordinator.store.records import Tokens, terms_text
from rljob_runtime.coordinator.store.tables import attempts
from rljob_runtime.coordinator.store.tables.kept_samples import Failed, KeptSamples
from rljob_runtime.protocols.trajectory import FinishReason, Lease, Outcome, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.round_plan import REWARD_FAILED


@dataclass(frozen=True)
class OpenTrajectory:
    """A stored response without an outcome."""

    key: TrajectoryKey
    attempt: int
    failures: int
    replica: str | None
    finish: FinishReason | None
    reward: float | None


class Trajectories:
    """The tables `trajectories`, `chunks` and `assigned`, on the store's connection."""

    def __init__(self, db: sqlite3.Connection, kept: KeptSamples) -> None:
        self._db = db
        self._kept_samples = kept

    def launched(self, step: int, version: int, leases: Iterable[tuple[TrajectoryKey, Lease]]) -> None:
        """Record new leases."""
        with transaction(self._db):
            self._db.executemany(
                f"UPDATE trajectories SET attempt = ?, replica = ?, version = ? WHERE {_WHERE}",
                [(lease.attempt, lease.replica, version, *self._row(step, key)) for key, lease in leases],
            )

    def append(self, step: int, tokens: Iterable[Tokens]) -> None:
        """Append tokens."""
        with transaction(self._db):
            self._append(step, tokens)

    def finish(self, step: int, tokens: Iterable[Tokens], finished: Iterable[Response]) -> None:
        """Append tokens and mark these responses complete."""
        with transaction(self._db):
            self._append(step, tokens)
            self._db.executemany(
                f"UPDATE trajectories SET finish = ? WHERE {_WHERE}",
                [(response.finish_reason.value, *self._row(step, response.key)) for response in finished],
            )

    def score(self, step: int, key: TrajectoryKey, reward: float) -> None:
        """Record a reward."""
        with transaction(self._db):
            self._db.execute(
                f"UPDATE trajectories SET reward = ?, terms = ? WHERE {_WHERE}",
                (float(reward), terms_text(reward), *self._row(step, key)),
            )

    def restart(
        self, step: int, key: TrajectoryKey, failures: int, cause: str = "", reason: str = REWARD_FAILED
    ) -> None:
        """Restart a response without tokens. `cause` and `reason`: the failure of its reward."""
        with transaction(self._db):
            self._kept_samples.keep_failed(step, key.prompt, key.sample, Failed(cause, reason))
            self._db.execute(f"DELETE FROM chunks WHERE {_WHERE}", self._row(step, key))
            self._db.execute(
                f"UPDATE trajectories SET failures = ?, finish = NULL, reward = NULL, terms = NULL WHERE {_WHERE}",
                (failures, *self._row(step, key)),
            )
            attempts.set_aside_ended(self._db, key)

    def assign(self, step: int, keys: Iterable[TrajectoryKey]) -> None:
        """Assign these responses to the training of `step`, once, before the trainer is called."""
        with transaction(self._db):
            self._db.executemany("INSERT INTO assigned VALUES (?, ?, ?, ?)", [self._row(step, key) for key in keys])

    def outcomes(self) -> Mapping[str, int]:
        """Count trajectories by outcome; `open` for those without. For checks and metrics."""
        rows = self._db.execute("SELECT COALESCE(outcome, 'open'), COUNT(*) FROM trajectories GROUP BY 1").fetchall()
        return dict(rows)

    def tokens_after(self, step: int) -> int:
        """Return the tokens generated in on-policy rounds after `step`.

        They come from the totals of closed rounds, and from the tokens of the open one."""
        (total,) = self._db.execute(
            "SELECT (SELECT ifnull(SUM(tokens), 0) FROM trajectories WHERE step > ?1)"
            " + (SELECT ifnull(SUM(length(tokens) / 4), 0) FROM chunks WHERE step > ?1)",
            (step,),
        ).fetchone()
        return int(total)

    # --- within the transactions of the store ---

    def draw(self, step: int, keys: Iterable[TrajectoryKey], attempts: Mapping[TrajectoryKey, int]) -> None:
        """Insert the responses of drawn prompts. `attempts`: those above 0."""
        self._db.executemany(
            "INSERT INTO trajectories (step, epoch, idx, sample, attempt) VALUES (?, ?, ?, ?, ?)",
            [(*self._row(step, key), attempts.get(key, 0)) for key in keys],
        )

    def count_tokens(self, step: int) -> None:
        """Keep the number of tokens of a round's responses: its tokens are about to be dropped."""
        self._db.execute(
            "UPDATE trajectories SET tokens = (SELECT COALESCE(SUM(length(c.tokens) / 4), 0) FROM chunks AS c WHERE"
            " c.step = trajectories.step AND c.epoch = trajectories.epoch AND c.idx = trajectories.idx"
            " AND c.sample = trajectories.sample) WHERE step = ?",
            (step,),
        )

    def drop_tokens(self, step: int) -> None:
        """Delete the tokens of a round."""
        self._db.execute("DELETE FROM chunks WHERE step = ?", (step,))

    def end_trained(self, step: int, keys: Iterable[TrajectoryKey]) -> None:
        """Record that these responses were trained on."""
        self._db.executemany(
            f"UPDATE trajectories SET outcome = ? WHERE {_WHERE}",
            [(Outcome.TRAINED.value, *self._row(step, key)) for key in keys],
        )

    def end_discarded(self, step: int, prompt: PromptKey, reason: str) -> None:
        """Record that a prompt's other responses were not trained on."""
        self._db.execute(
            "UPDATE trajectories SET outcome = ?, reason = ?"
            " WHERE step = ? AND epoch = ? AND idx = ? AND outcome IS NULL",
            (Outcome.DISCARDED.value, reason, step, *columns_of(self._db, prompt)),
        )

    # --- what a round holds ---

    def attempts(self, prompt: PromptKey) -> dict[TrajectoryKey, int]:
        """Return the attempts of a requeued prompt's responses in its last round."""
        rows = self._db.execute(
            "SELECT sample, attempt FROM trajectories WHERE epoch = ?1 AND idx = ?2"
            " AND step = (SELECT MAX(step) FROM prompts WHERE epoch = ?1 AND idx = ?2)",
            columns_of(self._db, prompt),
        ).fetchall()
        return {TrajectoryKey(prompt, sample): attempt for sample, attempt in rows}

    def open(self, step: int) -> Iterator[OpenTrajectory]:
        """Yield the responses of a round without an outcome."""
        rows = self._db.execute(
            "SELECT epoch, idx, sample, attempt, failures, replica, finish, reward FROM trajectories"
            " WHERE step = ? AND outcome IS NULL",
            (step,),
        ).fetchall()
        for epoch, index, sample, attempt, failures, replica, finish, reward in rows:
            key = TrajectoryKey(prompt_of(self._db, epoch, index), sample)
            ended = FinishReason(finish) if finish is not None else None
            yield OpenTrajectory(key, attempt, failures, replica, ended, reward)

    def tokens(self, step: int, key: TrajectoryKey) -> tuple[array[int], array[float]]:
        """Return a response's tokens and log-probabilities."""
        tokens, logprobs = array("i"), array("d")
        query = f"SELECT tokens, logprobs FROM chunks WHERE {_WHERE} ORDER BY start"
        for chunk in self._db.execute(query, self._row(step, key)):
            tokens.frombytes(chunk[0])
            logprobs.frombytes(chunk[1])
        return tokens, array("f", logprobs)

    def is_assigned(self, step: int) -> bool:
        """Whether responses are assigned to the training of `step`."""
        return self._db.execute("SELECT 1 FROM assigned WHERE step = ? LIMIT 1", (step,)).fetchone() is not None

    # --- details ---

    def _append(self, step: int, tokens: Iterable[Tokens]) -> None:
        self._db.executemany(
            "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *self._row(step, new.key),
                    new.start,
                    array("i", new.token_ids).tobytes(),
                    array("d", new.logprobs).tobytes(),
                )
                for new in tokens
                if len(new.token_ids) > 0
            ],
        )

    def _row(self, step: int, key: TrajectoryKey) -> tuple[int, int, int, int]:
        return step, *columns_of(self._db, key.prompt), key.sample


_WHERE = "step = ? AND epoch = ? AND idx = ? AND sample = ?"
