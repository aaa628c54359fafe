"""The coordinator's memory: what was drawn, generated, rewarded and trained on, in SQLite on the job's volume.

A coordinator that comes back goes on from here; a trainer that comes back at an older step has the store rewound to it.
`Store` is synchronous and belongs to one thread (`store_thread`). Every method is one transaction.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.status import RoundKind, RoundReport, RuntimeTotals
from rljob_runtime.coordinator.store_schema import FORMAT, TABLES, TRIGGERS
from rljob_runtime.scheduling.partials import Partial
from rljob_runtime.scheduling.rounds import RoundPlan, Saved, Settlement
from rljob_runtime.scheduling.trajectory import Cursor, FinishReason, Lease, Outcome, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.versions import Published, Versions

# On these a shared-memory index does not work across hosts, and fcntl locks are what there is.
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "glusterfs", "lustre", "fuse.glusterfs"})


class StoreUnusable(Exception):
    """The file is of another job, of a newer format, or damaged; the message says which and what to do."""


@dataclass(frozen=True)
class Boundary:
    """The state after `step` updates."""

    step: int
    cursor: Cursor
    totals: RuntimeTotals = field(default_factory=RuntimeTotals)
    report: RoundReport | None = None


@dataclass(frozen=True)
class OpenRound:
    """A round as a former coordinator left it."""

    plan: RoundPlan
    cursor: Cursor
    saved: dict[TrajectoryKey, Saved]
    partials: dict[TrajectoryKey, Partial]
    finish_reasons: dict[TrajectoryKey, FinishReason]
    assigned: bool
    filtered: int
    """Prompts drawn for this step before, all of which were filtered."""


@dataclass(frozen=True)
class Tokens:
    """New tokens of one response, to be appended at `start`."""

    key: TrajectoryKey
    start: int
    token_ids: Sequence[int]
    logprobs: Sequence[float]


def journal_for(path: Path, mounts: str | None = None) -> str:
    """WAL on local disks; TRUNCATE with an exclusive lock on network file systems, where WAL is unsafe."""
    text = mounts if mounts is not None else Path("/proc/mounts").read_text()
    points = [fields for fields in (line.split() for line in text.splitlines()) if len(fields) > 2]
    within = [fields for fields in points if path.resolve().is_relative_to(fields[1])]
    kind = max(within, key=lambda fields: len(fields[1]), default=["", "/", ""])[2]
    return "TRUNCATE" if kind in NETWORK_FILE_SYSTEMS else "WAL"


class Store:
    """One job's file. Raises `StoreUnusable` when it is not this job's."""

    def __init__(self, path: Path, job: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._open(path, job)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise StoreUnusable(f"{path}: {error}; restore the volume or give the job an empty one") from error
        except StoreUnusable:
            self._db.close()
            raise

    def _open(self, path: Path, job: str) -> None:
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute(f"PRAGMA journal_mode = {journal_for(path)}")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA foreign_keys = ON")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            with self._transaction():
                for statement in _statements(TABLES + TRIGGERS):
                    self._db.execute(statement)
                self._db.execute("INSERT INTO meta VALUES ('job', ?)", (job,))
                self._db.execute(f"PRAGMA user_version = {FORMAT}")
        elif version != FORMAT:
            raise StoreUnusable(f"{path} has format {version}, this runtime knows {FORMAT}: use the one that wrote it")
        owner = self._meta("job")
        if owner != job:
            raise StoreUnusable(f"{path} belongs to job {owner}, not {job}: give each job a folder of its own")

    def close(self) -> None:
        """Give the lock back."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    # --- who is in charge ---

    def adopt_term(self, term: int) -> int:
        """Take office: the higher of `term` and one above the last stored is stored and returned."""
        with self._transaction():
            term = max(term, int(self._meta("term") or 0) + 1)
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('term', ?)", (str(term),))
        return term

    def count_restart(self) -> int:
        """How many coordinators took this store up before; counts this one."""
        with self._transaction():
            starts = int(self._meta("starts") or 0)
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('starts', ?)", (str(starts + 1),))
        return starts

    # --- history ---

    def boundary(self) -> Boundary | None:
        """The newest boundary; None for a new job."""
        row = self._db.execute(
            "SELECT step, epoch, position, totals, report FROM boundaries ORDER BY step DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        report = RoundReport.model_validate_json(row[4]) if row[4] else None
        return Boundary(row[0], Cursor(row[1], row[2]), RuntimeTotals.model_validate_json(row[3]), report)

    def start_at(self, boundary: Boundary) -> None:
        """A new history from `boundary`: for a new job, or when a trainer is found that is ahead of an empty store."""
        with self._transaction():
            for table in ("rounds", "boundaries"):
                self._db.execute(f"DELETE FROM {table}")
            self._insert_boundary(boundary)

    def rewards(self) -> tuple[float, ...]:
        """Mean rewards of the rounds done, oldest first."""
        rows = self._db.execute("SELECT report FROM boundaries WHERE report IS NOT NULL ORDER BY step").fetchall()
        reports = (RoundReport.model_validate_json(row[0]) for row in rows)
        return tuple(report.reward for report in reports if report.reward is not None)

    def rewind(self, step: int) -> bool:
        """Back to an earlier boundary, the one after `step`: later rounds never were, their versions are lost. False
        when the store has no such boundary."""
        with self._transaction():
            if not self._db.execute("SELECT 1 FROM boundaries WHERE step = ?", (step,)).fetchone():
                return False
            self._db.execute("DELETE FROM boundaries WHERE step > ?", (step,))
            self._lose_versions_after(step)
            self._db.execute("DELETE FROM rounds WHERE step > ?", (step,))
        return True

    def lose_versions_after(self, step: int) -> None:
        """Versions of later steps are no longer anybody's weights."""
        with self._transaction():
            self._lose_versions_after(step)

    def versions(self) -> Versions:
        """Every weight version ever published."""
        rows = self._db.execute("SELECT version, step, lost FROM versions ORDER BY version").fetchall()
        return Versions(tuple(Published(version, step, bool(lost)) for version, step, lost in rows))

    def publish(self, version: int, step: int) -> None:
        """Before the trainer publishes: from now on this number is used."""
        with self._transaction():
            self._db.execute("INSERT INTO versions (version, step) VALUES (?, ?)", (version, step))

    # --- a round ---

    def open_round(self, plan: RoundPlan, cursor: Cursor) -> None:
        """The round's prompts are drawn. `cursor` is the one after the draw."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)",
                (plan.step, plan.kind.value, plan.version, plan.responses, cursor.epoch, cursor.position),
            )
            self._draw(plan)

    def launched(self, step: int, version: int, leases: Iterable[tuple[TrajectoryKey, Lease]]) -> None:
        """These responses have new leases."""
        with self._transaction():
            self._db.executemany(
                f"UPDATE trajectories SET attempt = ?, replica = ?, version = ? WHERE {_WHERE}",
                [(lease.attempt, lease.replica, version, *_row(step, key)) for key, lease in leases],
            )

    def append(self, step: int, tokens: Iterable[Tokens]) -> None:
        """Tokens as they came."""
        with self._transaction():
            self._append(step, tokens)

    def finish(self, step: int, tokens: Iterable[Tokens], finished: Iterable[Response]) -> None:
        """These responses are whole; `tokens` are their last ones."""
        with self._transaction():
            self._append(step, tokens)
            self._db.executemany(
                f"UPDATE trajectories SET finish = ? WHERE {_WHERE}",
                [(response.finish_reason.value, *_row(step, response.key)) for response in finished],
            )

    def score(self, step: int, key: TrajectoryKey, reward: float) -> None:
        """A reward came."""
        with self._transaction():
            self._db.execute(f"UPDATE trajectories SET reward = ? WHERE {_WHERE}", (reward, *_row(step, key)))

    def restart(self, step: int, key: TrajectoryKey, failures: int) -> None:
        """A response is generated again from nothing."""
        with self._transaction():
            self._db.execute(f"DELETE FROM chunks WHERE {_WHERE}", _row(step, key))
            self._db.execute(
                f"UPDATE trajectories SET failures = ?, finish = NULL, reward = NULL WHERE {_WHERE}",
                (failures, *_row(step, key)),
            )

    def assign(self, step: int, keys: Iterable[TrajectoryKey]) -> None:
        """These are what `step` trains on; before the trainer is called, and only once."""
        with self._transaction():
            self._db.executemany("INSERT INTO assigned VALUES (?, ?, ?, ?)", [_row(step, key) for key in keys])

    def redraw(self, settlement: Settlement, plan: RoundPlan, cursor: Cursor) -> None:
        """No group of the round was left to train on: settle its prompts, and give the same step the new ones of
        `plan`."""
        with self._transaction():
            self._settle(plan.step, settlement)
            self._db.execute(
                "UPDATE rounds SET epoch = ?, position = ? WHERE step = ?", (cursor.epoch, cursor.position, plan.step)
            )
            self._draw(plan)

    def close_round(self, settlement: Settlement, boundary: Boundary) -> None:
        """The update is done: outcomes, fates and the boundary in one stroke; the tokens are no longer needed."""
        step = boundary.step
        with self._transaction():
            self._settle(step, settlement)
            self._insert_boundary(boundary)
            self._db.execute("DELETE FROM chunks WHERE step = ?", (step,))

    def round_under_way(self) -> OpenRound | None:
        """The round that has no boundary yet, with all that is known of it."""
        row = self._db.execute(
            "SELECT step, kind, version, responses, epoch, position FROM rounds"
            " WHERE step > (SELECT COALESCE(MAX(step), 0) FROM boundaries) ORDER BY step LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        step = row[0]
        drawn = "FROM prompts WHERE step = ? AND fate IS"
        prompts = self._db.execute(f"SELECT epoch, idx {drawn} NULL ORDER BY ordinal", (step,)).fetchall()
        filtered = self._db.execute(f"SELECT COUNT(*) {drawn} NOT NULL", (step,)).fetchone()
        plan = RoundPlan(step, RoundKind(row[1]), row[2], tuple(PromptKey(*prompt) for prompt in prompts), row[3])
        found = OpenRound(plan, Cursor(row[4], row[5]), {}, {}, {}, self._is_assigned(step), filtered[0])
        for key, attempt, failures, replica, finish, reward in self._trajectories(step):
            found.saved[key] = Saved(attempt, failures, finish is not None, reward)
            if finish is not None:
                found.finish_reasons[key] = FinishReason(finish)
            tokens, logprobs = self._tokens(step, key)
            if tokens:
                found.partials[key] = Partial(Lease(replica or "", attempt), plan.version, tokens, logprobs)
        return found

    # --- details ---

    def _lose_versions_after(self, step: int) -> None:
        self._db.execute("UPDATE versions SET lost = 1 WHERE step > ?", (step,))

    def _draw(self, plan: RoundPlan) -> None:
        self._db.executemany(
            "INSERT INTO prompts (step, epoch, idx, ordinal) VALUES (?, ?, ?, ?)",
            [(plan.step, prompt.epoch, prompt.index, ordinal) for ordinal, prompt in enumerate(plan.prompts)],
        )
        self._db.executemany(
            "INSERT INTO trajectories (step, epoch, idx, sample) VALUES (?, ?, ?, ?)",
            [_row(plan.step, key) for key in plan.trajectories()],
        )

    def _settle(self, step: int, settlement: Settlement) -> None:
        for prompt, fate in settlement.fates.items():
            reason = settlement.reasons.get(prompt)
            outcome = Outcome.DISCARDED if reason is not None else Outcome.TRAINED
            where = (step, prompt.epoch, prompt.index)
            self._db.execute(
                "UPDATE prompts SET fate = ?, reason = ? WHERE step = ? AND epoch = ? AND idx = ?",
                (fate.value, reason, *where),
            )
            self._db.execute(
                "UPDATE trajectories SET outcome = ?, reason = ? WHERE step = ? AND epoch = ? AND idx = ?",
                (outcome.value, reason, *where),
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

    def _tokens(self, step: int, key: TrajectoryKey) -> tuple[list[int], list[float]]:
        tokens, logprobs = array("i"), array("d")
        query = f"SELECT tokens, logprobs FROM chunks WHERE {_WHERE} ORDER BY start"
        for chunk in self._db.execute(query, _row(step, key)):
            tokens.frombytes(chunk[0])
            logprobs.frombytes(chunk[1])
        return tokens.tolist(), logprobs.tolist()

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

    def _insert_boundary(self, boundary: Boundary) -> None:
        report = json.dumps(boundary.report.to_dict()) if boundary.report is not None else None
        self._db.execute(
            "INSERT INTO boundaries (step, epoch, position, totals, report) VALUES (?, ?, ?, ?, ?)",
            (
                boundary.step,
                boundary.cursor.epoch,
                boundary.cursor.position,
                json.dumps(boundary.totals.to_dict()),
                report,
            ),
        )

    def _is_assigned(self, step: int) -> bool:
        return self._db.execute("SELECT 1 FROM assigned WHERE step = ? LIMIT 1", (step,)).fetchone() is not None

    def outcomes(self) -> Mapping[str, int]:
        """How many trajectories ended how; `open` for those that have not. For checks and figures."""
        rows = self._db.execute("SELECT COALESCE(outcome, 'open'), COUNT(*) FROM trajectories GROUP BY 1").fetchall()
        return dict(rows)


_WHERE = "step = ? AND epoch = ? AND idx = ? AND sample = ?"


def _row(step: int, key: TrajectoryKey) -> tuple[int, int, int, int]:
    return step, key.prompt.epoch, key.prompt.index, key.sample


def _statements(script: str) -> Iterator[str]:
    """Single statements of a script; `executescript` would commit the transaction it runs in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
