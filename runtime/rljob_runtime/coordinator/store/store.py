"""State store: what was drawn, generated, rewarded and trained on, in SQLite on the job's volume.

A restarted coordinator continues from it. If the trainer returns at an older step, the store is rewound to that step.
`Store` is synchronous and belongs to one thread (`store_thread`). Every method is one transaction.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType

from rljob_api.status import RoundKind, RoundReport, RuntimeTotals
from rljob_runtime.coordinator.store.async_rewind import begin, give_back
from rljob_runtime.coordinator.store.async_store import AsyncStore
from rljob_runtime.coordinator.store.connection import Opening, attempts_before, begin_attempts, open_file, transaction
from rljob_runtime.coordinator.store.kept_samples import KeptSamples
from rljob_runtime.coordinator.store.pruning import forget_sums, prune
from rljob_runtime.coordinator.store.records import Boundary, OpenRound, Pool, Tokens, insert_boundary, terms_text
from rljob_runtime.coordinator.store.reward_terms import reward_terms
from rljob_runtime.coordinator.store.round_history import Remembered, remembered
from rljob_runtime.perf_model.observed_speed import Speed
from rljob_runtime.protocols.rewards import Anchors, Terms
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, Outcome, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.partial_responses import Partial
from rljob_runtime.scheduling.round_plan import (
    RACE_LOST,
    RestoredSample,
    RoundOutcome,
    RoundPlan,
    RoundRules,
    RoundShape,
)
from rljob_runtime.scheduling.round_planner.plans import DEFAULT_PLAN, SelectedPlan
from rljob_runtime.scheduling.status_cadence import reward_ends
from rljob_runtime.scheduling.weight_versions import PublishedVersion, Versions

TIDY_ROWS, TIDY_TURNS = 16_384, 128
"""After this many rows (two seconds of 8,192 responses), or this many turns, the journal is moved into the file. A
small job's journal stays within a few MB."""


class Store:
    """One job's file. Raises `connection.StoreUnusable` if it belongs to another job."""

    def __init__(self, path: Path, job: str, opening: Opening | None = None) -> None:
        self._db = open_file(path, job, opening)
        self.samples = KeptSamples(self._db)
        self.experience = AsyncStore(self._db, self.samples)
        """Tables of `mode: Asynchronous`."""
        self._tidied = self._turns = 0

    def tidy(self) -> None:
        """Move the journal into the file, if worthwhile. Call it when no work waits, so that no commit has to do it."""
        self._turns += 1
        if self._db.total_changes - self._tidied >= TIDY_ROWS or self._turns >= TIDY_TURNS:
            self._tidied, self._turns = self._db.total_changes, 0
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def close(self) -> None:
        """Release the lock."""
        self._db.close()

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._db)

    def _meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    # --- who is in charge ---

    def adopt_term(self, term: int) -> int:
        """Store and return the higher of `term` and the last stored term plus 1."""
        with self._transaction():
            before = self._meta("term")
            term = max(term, int(before or 0) + 1)
            if before is None:
                begin_attempts(self._db, term)
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('term', ?)", (str(term),))
        return term

    def count_restart(self) -> int:
        """Return how many coordinators opened this store before, and count this one."""
        with self._transaction():
            starts = int(self._meta("starts") or 0)
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('starts', ?)", (str(starts + 1),))
        return starts

    # --- history ---

    def boundary(self) -> Boundary | None:
        """Return the newest boundary; None for a new job."""
        row = self._db.execute(
            "SELECT step, epoch, position, totals, report, long_queue FROM boundaries ORDER BY step DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        report = RoundReport.model_validate_json(row[4]) if row[4] else None
        queue = tuple(PromptKey.parse(text) for text in json.loads(row[5]))
        return Boundary(row[0], Cursor(row[1], row[2]), RuntimeTotals.model_validate_json(row[3]), report, queue)

    def start_at(
        self,
        boundary: Boundary,
        anchors: Anchors = MappingProxyType({}),
        version: int = 0,
        pool: Pool | None = None,
    ) -> None:
        """Start a history at `boundary`: for a new job, or if the trainer is ahead of an empty store.

        `version` counts as used. `pool`: of an asynchronous job."""
        with self._transaction():
            floor = max(version, self.versions().floor)
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('version_floor', ?)", (str(floor),))
            for table in ("rounds", "boundaries", "rewards"):
                self._db.execute(f"DELETE FROM {table}")
            forget_sums(self._db)
            self.samples.forget_after(-1)
            begin(self._db, pool)
            insert_boundary(self._db, boundary, anchors)

    def anchors(self) -> dict[str, dict[str, int]]:
        """Return the anchors of reward timeouts at the newest boundary."""
        rows = self._db.execute("SELECT rule, test, MAX(milliseconds) FROM anchors GROUP BY rule, test").fetchall()
        found: dict[str, dict[str, int]] = {}
        for rule, test, milliseconds in rows:
            found.setdefault(rule, {})[test] = milliseconds
        return found

    def reward_ends(self) -> tuple[float | None, float | None]:
        """Return `status_cadence.reward_ends` of all closed rounds."""

        def total(rounds: int) -> float:
            row = self._db.execute("SELECT total FROM rewards WHERE number = ?", (rounds,)).fetchone()
            return row[0] if row is not None else 0.0

        count = self._db.execute("SELECT number FROM rewards ORDER BY step DESC LIMIT 1").fetchone()
        return reward_ends(count[0] if count is not None else 0, total)

    def remembered(self, max_response_tokens: int) -> Remembered:
        """Return the history for predictions of rounds with at most this many tokens per response."""
        boundary = self.boundary()
        return remembered(self._db, boundary.step if boundary is not None else 0, max_response_tokens)

    def rewind(self, step: int) -> bool:
        """Rewind to the boundary after `step`; False if the store has none.

        Later rounds are deleted, their versions abandoned, and their groups returned to the experience buffer. The
        boundary's totals count the cost."""
        with self._transaction():
            row = self._db.execute("SELECT totals FROM boundaries WHERE step = ?", (step,)).fetchone()
            if row is None:
                return False
            totals = RuntimeTotals.model_validate_json(row[0])
            lost = totals.lost_version_tokens + self.tokens_after(step)
            told = json.dumps(totals.model_copy(update={"lost_version_tokens": lost}).to_dict())
            self._db.execute("UPDATE boundaries SET totals = ? WHERE step = ?", (told, step))
            for table in ("boundaries", "rewards"):
                self._db.execute(f"DELETE FROM {table} WHERE step > ?", (step,))
            self._lose_versions_after(step)
            self._db.execute("DELETE FROM rounds WHERE step > ?", (step,))
            self.samples.forget_after(step)
            give_back(self._db, step)
        return True

    def tokens_after(self, step: int) -> int:
        """Return the tokens generated in on-policy rounds after `step`.

        They come from the totals of closed rounds, and from the tokens of the open one."""
        return self._db.execute(
            "SELECT (SELECT ifnull(SUM(tokens), 0) FROM trajectories WHERE step > ?1)"
            " + (SELECT ifnull(SUM(length(tokens) / 4), 0) FROM chunks WHERE step > ?1)",
            (step,),
        ).fetchone()[0]

    def prune(self, keep: int) -> bool:
        """Prune the oldest round if there are more than `keep`, as `pruning` describes.

        Returns False if there is none to prune."""
        with self._transaction():
            return prune(self._db, keep)

    def lose_versions_after(self, step: int) -> None:
        """Abandon the versions of later steps."""
        with self._transaction():
            self._lose_versions_after(step)

    def versions(self) -> Versions:
        """Return the versions of all rounds and groups in the store; the floor is above all others."""
        first = self._db.execute(
            # Ordered by step: by version, those of all pruned rounds would come first.
            "SELECT MIN(version) FROM versions INDEXED BY versions_by_step"
            " WHERE step >= (SELECT MIN(step) FROM boundaries)"
        ).fetchone()[0]
        opened = self._db.execute("SELECT MIN(version) FROM groups WHERE fate IS NULL").fetchone()[0]
        least = min((version for version in (first, opened) if version is not None), default=0)
        rows = self._db.execute(
            "SELECT version, step, lost FROM versions WHERE version >= ? ORDER BY version", (least,)
        ).fetchall()
        floor = max(int(self._meta("version_floor") or 0), least - 1)
        return Versions(tuple(PublishedVersion(version, step, bool(lost)) for version, step, lost in rows), floor)

    def publish(self, version: int, step: int) -> None:
        """Reserve a version number, before the trainer publishes it."""
        with self._transaction():
            self._db.execute("INSERT INTO versions (version, step) VALUES (?, ?)", (version, step))

    # --- a round ---

    def open_round(
        self, plan: RoundPlan, cursor: Cursor, chosen: SelectedPlan = DEFAULT_PLAN
    ) -> dict[TrajectoryKey, RestoredSample]:
        """Open a round with its prompts; `cursor` is the one after the draw.

        Returns the records of prompts that earlier rounds requeued: attempts keep rising."""
        shape, rules = plan.shape, plan.rules
        with self._transaction():
            self._db.execute(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(plan.step, plan.version),
                    *(shape.kind.value, shape.prompts, shape.responses, shape.groups, shape.group_size),
                    *(rules.max_failures, rules.drop_equal, rules.max_prompts),
                    *(cursor.epoch, cursor.position),
                ),
            )
            self._db.execute("INSERT INTO decisions (step, chosen) VALUES (?, ?)", (plan.step, chosen.to_json()))
            return self._draw(plan, plan.prompts)

    def extend(
        self, plan: RoundPlan, prompts: Sequence[PromptKey], cursor: Cursor
    ) -> dict[TrajectoryKey, RestoredSample]:
        """Add drawn prompts to the open round. Returns as `open_round` does."""
        with self._transaction():
            self._db.execute(
                "UPDATE rounds SET epoch = ?, position = ? WHERE step = ?", (cursor.epoch, cursor.position, plan.step)
            )
            return self._draw(plan, prompts)

    def launched(self, step: int, version: int, leases: Iterable[tuple[TrajectoryKey, Lease]]) -> None:
        """Record new leases."""
        with self._transaction():
            self._db.executemany(
                f"UPDATE trajectories SET attempt = ?, replica = ?, version = ? WHERE {_WHERE}",
                [(lease.attempt, lease.replica, version, *_row(step, key)) for key, lease in leases],
            )

    def append(self, step: int, tokens: Iterable[Tokens]) -> None:
        """Append tokens."""
        with self._transaction():
            self._append(step, tokens)

    def finish(self, step: int, tokens: Iterable[Tokens], finished: Iterable[Response]) -> None:
        """Append tokens and mark these responses complete."""
        with self._transaction():
            self._append(step, tokens)
            self._db.executemany(
                f"UPDATE trajectories SET finish = ? WHERE {_WHERE}",
                [(response.finish_reason.value, *_row(step, response.key)) for response in finished],
            )

    def score(self, step: int, key: TrajectoryKey, reward: float) -> None:
        """Record a reward."""
        with self._transaction():
            self._db.execute(
                f"UPDATE trajectories SET reward = ?, terms = ? WHERE {_WHERE}",
                (float(reward), terms_text(reward), *_row(step, key)),
            )

    def restart(self, step: int, key: TrajectoryKey, failures: int) -> None:
        """Restart a response without tokens."""
        with self._transaction():
            self.samples.keep_failed(step, key.prompt, key.sample)
            self._db.execute(f"DELETE FROM chunks WHERE {_WHERE}", _row(step, key))
            self._db.execute(
                f"UPDATE trajectories SET failures = ?, finish = NULL, reward = NULL, terms = NULL WHERE {_WHERE}",
                (failures, *_row(step, key)),
            )

    def reward_terms(self, step: int) -> dict[TrajectoryKey, Terms]:
        """Return the values of each rule for the responses of a round or an update, before it is closed."""
        return reward_terms(self._db, step)

    def assign(self, step: int, keys: Iterable[TrajectoryKey]) -> None:
        """Assign these responses to the training of `step`, once, before the trainer is called."""
        with self._transaction():
            self._db.executemany("INSERT INTO assigned VALUES (?, ?, ?, ?)", [_row(step, key) for key in keys])

    def close_round(
        self,
        settlement: RoundOutcome,
        boundary: Boundary,
        risen: Anchors = MappingProxyType({}),
        speed: Speed | None = None,
    ) -> None:
        """Close the round in one transaction: outcomes, long-prompt queue, raised anchors and boundary.

        Of tokens only their number is kept. `speed`: observed speed of the engines."""
        step = boundary.step
        with self._transaction():
            self._db.execute(
                "UPDATE trajectories SET tokens = (SELECT COALESCE(SUM(length(c.tokens) / 4), 0) FROM chunks AS c WHERE"
                " c.step = trajectories.step AND c.epoch = trajectories.epoch AND c.idx = trajectories.idx"
                " AND c.sample = trajectories.sample) WHERE step = ?",
                (step,),
            )
            if speed is not None:
                self._db.execute("UPDATE decisions SET speed = ? WHERE step = ?", (speed.to_json(), step))
            self._settle(step, settlement)
            self.samples.close_round(step)
            insert_boundary(self._db, boundary, risen)
            self._db.execute("DELETE FROM chunks WHERE step = ?", (step,))

    def round_is_open(self) -> bool:
        """Whether there is a round without a boundary."""
        row = self._db.execute(
            "SELECT 1 FROM rounds WHERE step > (SELECT COALESCE(MAX(step), 0) FROM boundaries) LIMIT 1"
        ).fetchone()
        return row is not None

    def round_under_way(self) -> OpenRound | None:
        """Return the open round with all its records; None without one."""
        row = self._db.execute(
            "SELECT * FROM rounds WHERE step > (SELECT COALESCE(MAX(step), 0) FROM boundaries) ORDER BY step LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        step, version, kind, prompts, responses, groups, group_size, failures, drop_equal, most, epoch, position = row
        shape = RoundShape(RoundKind(kind), prompts, responses, groups, group_size)
        rules = RoundRules(failures, bool(drop_equal), most)
        drawn = self._db.execute("SELECT epoch, idx FROM prompts WHERE step = ? ORDER BY ordinal", (step,)).fetchall()
        plan = RoundPlan(step, version, shape, tuple(PromptKey(*prompt) for prompt in drawn), rules)
        chosen = self._db.execute("SELECT chosen FROM decisions WHERE step = ?", (step,)).fetchone()[0]
        assigned = self._is_assigned(step)
        found = OpenRound(plan, Cursor(epoch, position), {}, {}, {}, assigned, SelectedPlan.from_json(chosen))
        for key, attempt, failures, replica, finish, reward in self._trajectories(step):
            found.saved[key] = RestoredSample(attempt, failures, finish is not None, reward)
            if finish is not None:
                found.finish_reasons[key] = FinishReason(finish)
            tokens, logprobs = self._tokens(step, key)
            if tokens:
                found.partials[key] = Partial(Lease(replica or "", attempt), plan.version, tokens, logprobs)
        return found

    # --- details ---

    def _lose_versions_after(self, step: int) -> None:
        self._db.execute("UPDATE versions SET lost = 1 WHERE step > ?", (step,))

    def _draw(self, plan: RoundPlan, prompts: Sequence[PromptKey]) -> dict[TrajectoryKey, RestoredSample]:
        known = {key: saved for prompt in prompts for key, saved in self._drawn_before(prompt)}
        if (first := attempts_before(self._db)) > 0:
            keys = (key for prompt in prompts for key in plan.responses_of(prompt))
            known |= {key: RestoredSample(first) for key in keys if key not in known}
        drawn = self._db.execute("SELECT COUNT(*) FROM prompts WHERE step = ?", (plan.step,)).fetchone()[0]
        self._db.executemany(
            "INSERT INTO prompts (step, epoch, idx, ordinal) VALUES (?, ?, ?, ?)",
            [(plan.step, prompt.epoch, prompt.index, ordinal) for ordinal, prompt in enumerate(prompts, drawn)],
        )
        self._db.executemany(
            "INSERT INTO trajectories (step, epoch, idx, sample, attempt) VALUES (?, ?, ?, ?, ?)",
            [
                (*_row(plan.step, key), known[key].attempt if key in known else 0)
                for prompt in prompts
                for key in plan.responses_of(prompt)
            ],
        )
        return known

    def _drawn_before(self, prompt: PromptKey) -> Iterator[tuple[TrajectoryKey, RestoredSample]]:
        """Return the attempts of a requeued prompt's responses in its last round."""
        rows = self._db.execute(
            "SELECT sample, attempt FROM trajectories WHERE epoch = ?1 AND idx = ?2"
            " AND step = (SELECT MAX(step) FROM prompts WHERE epoch = ?1 AND idx = ?2)",
            (prompt.epoch, prompt.index),
        ).fetchall()
        for sample, attempt in rows:
            yield TrajectoryKey(prompt, sample), RestoredSample(attempt)

    def _settle(self, step: int, settlement: RoundOutcome) -> None:
        self._db.executemany(
            f"UPDATE trajectories SET outcome = ? WHERE {_WHERE}",
            [(Outcome.TRAINED.value, *_row(step, key)) for key in settlement.kept],
        )
        for prompt, outcome in settlement.outcomes.items():
            reason = settlement.reasons.get(prompt)
            where = (step, prompt.epoch, prompt.index)
            self._db.execute(
                "UPDATE prompts SET fate = ?, reason = ? WHERE step = ? AND epoch = ? AND idx = ?",
                (outcome.value, reason, *where),
            )
            self._db.execute(
                "UPDATE trajectories SET outcome = ?, reason = ?"
                " WHERE step = ? AND epoch = ? AND idx = ? AND outcome IS NULL",
                (Outcome.DISCARDED.value, reason or RACE_LOST, *where),
            )

    def _trajectories(
        self, step: int
    ) -> Iterator[tuple[TrajectoryKey, int, int, str | None, str | None, float | None]]:
        rows = self._db.execute(
            "SELECT epoch, idx, sample, attempt, failures, replica, finish, reward FROM trajectories"
            " WHERE step = ? AND outcome IS NULL",
            (step,),
        ).fetchall()
        for epoch, index, sample, *rest in rows:
            yield TrajectoryKey(PromptKey(epoch, index), sample), *rest

    def _tokens(self, step: int, key: TrajectoryKey) -> tuple[array[int], array[float]]:
        tokens, logprobs = array("i"), array("d")
        query = f"SELECT tokens, logprobs FROM chunks WHERE {_WHERE} ORDER BY start"
        for chunk in self._db.execute(query, _row(step, key)):
            tokens.frombytes(chunk[0])
            logprobs.frombytes(chunk[1])
        return tokens, array("f", logprobs)

    def _append(self, step: int, tokens: Iterable[Tokens]) -> None:
        self._db.executemany(
            "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *_row(step, new.key),
                    new.start,
                    array("i", new.token_ids).tobytes(),
                    array("d", new.logprobs).tobytes(),
                )
                for new in tokens
                if len(new.token_ids) > 0
            ],
        )

    def _is_assigned(self, step: int) -> bool:
        return self._db.execute("SELECT 1 FROM assigned WHERE step = ? LIMIT 1", (step,)).fetchone() is not None

    def outcomes(self) -> Mapping[str, int]:
        """Count trajectories by outcome; `open` for those without. For checks and metrics."""
        rows = self._db.execute("SELECT COALESCE(outcome, 'open'), COUNT(*) FROM trajectories GROUP BY 1").fetchall()
        return dict(rows)


_WHERE = "step = ? AND epoch = ? AND idx = ? AND sample = ?"


def _row(step: int, key: TrajectoryKey) -> tuple[int, int, int, int]:
    return step, key.prompt.epoch, key.prompt.index, key.sample
