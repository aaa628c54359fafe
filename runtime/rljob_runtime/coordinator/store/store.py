"""State store: what was drawn, generated, rewarded and trained on, in SQLite on the job's volume.

A restarted coordinator continues from it. If the trainer returns at an older step, the store is rewound to that step.
`Store` is synchronous and belongs to one thread (`store_thread`). Its tables are its attributes. Every method of it and
of them is one transaction, or a part of that of `together`. Those that are marked run within another's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType

from rljob_runtime.coordinator.store.async_rewind import begin, give_back
from rljob_runtime.coordinator.store.async_store import AsyncStore
from rljob_runtime.coordinator.store.connection import Opening, begin_attempts, open_file, transaction
from rljob_runtime.coordinator.store.evaluations import Evaluations
from rljob_runtime.coordinator.store.pruning import forget_sums, prune
from rljob_runtime.coordinator.store.records import Boundary, Pool
from rljob_runtime.coordinator.store.reward_terms import reward_terms
from rljob_runtime.coordinator.store.round_history import Remembered, recent_lengths, remembered, speeds_by_size
from rljob_runtime.coordinator.store.round_lengths import ResponseLengths, round_lengths
from rljob_runtime.coordinator.store.tables import attempts
from rljob_runtime.coordinator.store.tables.boundaries import Boundaries, insert_boundary
from rljob_runtime.coordinator.store.tables.kept_episodes import kept_episode
from rljob_runtime.coordinator.store.tables.kept_samples import KeptSamples
from rljob_runtime.coordinator.store.tables.meta import read, write
from rljob_runtime.coordinator.store.tables.rounds import Rounds
from rljob_runtime.coordinator.store.tables.tool_calls import ToolCalls
from rljob_runtime.coordinator.store.tables.trajectories import Trajectories
from rljob_runtime.coordinator.store.tables.turns import Turns
from rljob_runtime.coordinator.store.tables.versions import WeightVersions
from rljob_runtime.perf_model.observed_speed import Speed
from rljob_runtime.protocols.rewards import Anchors, Terms
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.round_planner.survival import LengthObservation

TIDY_ROWS, TIDY_TURNS = 16_384, 128
"""After this many rows (two seconds of 8,192 responses), or this many turns, the journal is moved into the file. A
small job's journal stays within a few MB."""


class Store:
    """One job's file. Raises `connection.StoreUnusable` if it belongs to another job."""

    def __init__(self, path: Path, job: str, opening: Opening | None = None) -> None:
        self._db = open_file(path, job, opening)
        self.boundaries = Boundaries(self._db)
        self.versions = WeightVersions(self._db)
        self.samples = KeptSamples(self._db, partial(kept_episode, self._db))
        self.evaluations = Evaluations(self._db, self.samples)
        self.trajectories = Trajectories(self._db, self.samples)
        self.rounds = Rounds(self._db, self.trajectories, self.samples)
        """Tables of `mode: OnPolicy`, with `trajectories`."""
        self.experience = AsyncStore(self._db, self.samples)
        """Tables of `mode: Asynchronous`."""
        self.turns = Turns(self._db)
        self.tool_calls = ToolCalls(self._db)
        self._tidied = self._turns = 0

    @property
    def connection(self) -> sqlite3.Connection:
        """The open file, for readers of whole tables in the store's thread."""
        return self._db

    def tidy(self) -> None:
        """Move the journal into the file, if worthwhile. Call it when no work waits, so that no commit has to do it."""
        self._turns += 1
        if self._db.total_changes - self._tidied >= TIDY_ROWS or self._turns >= TIDY_TURNS:
            self._tidied, self._turns = self._db.total_changes, 0
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def close(self) -> None:
        """Release the lock."""
        self._db.close()

    # --- who is in charge ---

    def adopt_term(self, term: int) -> int:
        """Store and return the higher of `term` and the last stored term plus 1."""
        with transaction(self._db):
            before = read(self._db, "term")
            term = max(term, int(before or 0) + 1)
            if before is None:
                begin_attempts(self._db, term)
                attempts.begin_numbers(self._db, term)
            write(self._db, "term", str(term))
        return term

    def count_restart(self) -> int:
        """Return how many coordinators opened this store before, and count this one."""
        with transaction(self._db):
            starts = int(read(self._db, "starts") or 0)
            write(self._db, "starts", str(starts + 1))
        return starts

    @contextmanager
    def together(self) -> Iterator[None]:
        """Store what the block stores together: the disk is waited for once."""
        with transaction(self._db):
            yield

    # --- history ---

    def start_at(
        self,
        boundary: Boundary,
        anchors: Anchors = MappingProxyType({}),
        version: int = 0,
        pool: Pool | None = None,
    ) -> None:
        """Start a history at `boundary`: for a new job, or if the trainer is ahead of an empty store.

        `version` counts as used. `pool`: of an asynchronous job."""
        with transaction(self._db):
            self.versions.raise_floor(version)
            self.rounds.forget_after(-1)
            self.boundaries.forget_after(-1)
            forget_sums(self._db)
            attempts.drop_all(self._db)
            self.samples.forget_after(-1)
            self.evaluations.forget_after(-1)
            begin(self._db, pool)
            insert_boundary(self._db, boundary, anchors)

    def rewind(self, step: int) -> bool:
        """Rewind to the boundary after `step`; False if the store has none.

        Later rounds are deleted, their versions abandoned, and their groups returned to the experience buffer. The
        boundary's totals count the cost."""
        with transaction(self._db):
            if not self.boundaries.rewind(step, self.trajectories.tokens_after(step)):
                return False
            self.versions.mark_abandoned_after(step)
            attempts.undo_after(self._db, step)
            self.rounds.forget_after(step)
            self.samples.forget_after(step)
            self.evaluations.forget_after(step)
            give_back(self._db, step)
        return True

    def prune(self, keep: int) -> bool:
        """Prune the oldest round if there are more than `keep`, as `pruning` describes.

        Returns False if there is none to prune."""
        with transaction(self._db):
            return prune(self._db, keep)

    # --- what rounds and updates hold ---

    def remembered(self, max_response_tokens: int) -> Remembered:
        """Return the history for predictions of rounds with at most this many tokens per response."""
        boundary = self.boundaries.newest()
        return remembered(self._db, boundary.step if boundary is not None else 0, max_response_tokens)

    def speeds(self, rounds: int) -> dict[int, tuple[Speed, ...]]:
        """Return the speeds of engines by tensor parallel size, each in the last `rounds` closed ones that have it."""
        boundary = self.boundaries.newest()
        return speeds_by_size(self._db, boundary.step if boundary is not None else 0, rounds)

    def recent_lengths(self, least: int, max_response_tokens: int) -> list[LengthObservation]:
        """Return at least so many response lengths of the newest closed rounds, if there are. See `round_history`."""
        boundary = self.boundaries.newest()
        return recent_lengths(self._db, boundary.step if boundary is not None else 0, least, max_response_tokens)

    def lengths(self, step: int) -> list[ResponseLengths]:
        """Return the lengths of a closed round's complete responses, by prompt."""
        return round_lengths(self._db, step)

    def reward_terms(self, step: int) -> dict[TrajectoryKey, Terms]:
        """Return the values of each rule for the responses of a round or an update, before it is closed."""
        return reward_terms(self._db, step)
