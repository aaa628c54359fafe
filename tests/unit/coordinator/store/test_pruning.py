"""A long job's store: rounds below any rewind leave, their sums stay, and no round costs more than the ones
before."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import statistics
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome, RoundReport
from rljob_runtime.audit import AuditResult, Rule, audit
from rljob_runtime.coordinator.core.settings import rounds_kept
from rljob_runtime.coordinator.store.connection import transaction
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.boundaries import insert_boundary
from rljob_runtime.protocols.trajectory import Cursor
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job, until

KEPT = 9
TAIL = {"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}
JOBS: dict[str, dict[str, Any]] = {
    "on policy": {},
    "tail batching": {"tail": TAIL},
    "asynchronous": {"mode": Mode.ASYNCHRONOUS},
}


def long_job(kind: str, rounds: int) -> RLJob:
    """Of few tokens, since each one costs a poll."""
    return job(rounds=rounds, prompts=2, responses=2, data={"maxResponseTokens": 8}, **JOBS[kind])


def played(path: Path, kind: str, keep: int, rounds: int = 30, **stage: Any) -> Stage:
    one = Stage(path / "state.db", job=long_job(kind, rounds), **stage)
    assert one.play(keep_rounds=keep).outcome is FinishedOutcome.COMPLETE
    return one


@pytest.fixture(scope="module", params=["on policy", *slow("asynchronous")])
def pruned_job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a job's store of 20 rounds, of which some are pruned. Tests copy it."""
    folder = tmp_path_factory.mktemp("pruned")
    played(folder, request.param, KEPT, rounds=20)
    return folder


def sums(verdict: AuditResult) -> dict[str, Any]:
    return {
        "prompts": {outcome: count for outcome, count in verdict.prompts.items() if outcome != "requeued"},
        "draws": verdict.draws,
        "trajectories": verdict.trajectories,
        "tokens": verdict.tokens,
        "versions": verdict.versions,
        "span": (verdict.began, verdict.ended),
    }


def rows(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path / "state.db")) as db:
        tables = ("boundaries", "rounds", "prompts", "trajectories", "assigned", "groups", "samples", "pruned")
        return {table: db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables}


@pytest.mark.parametrize("kind", [*slow("tail batching"), "on policy", "asynchronous"])
def test_the_audits_totals_are_those_of_the_whole_history(tmp_path, kind):
    whole, pruned = tmp_path / "whole", tmp_path / "pruned"
    for folder, keep in ((whole, 1_000_000), (pruned, KEPT)):
        folder.mkdir()
        played(folder, kind, keep)
    expected, found = audit(whole), audit(pruned)
    assert expected.findings == found.findings == ()
    assert sums(found) == sums(expected)
    assert (expected.kept, found.kept) == (0, 30 - KEPT)
    assert rows(whole)["pruned"] == 0
    kept = rows(pruned)
    assert kept["boundaries"] == KEPT + 1
    assert kept["rounds"] in (0, KEPT)
    assert kept["trajectories"] < 2 * KEPT / 30 * max(rows(whole)["trajectories"], 1)
    assert kept["samples"] < 2 * KEPT / 30 * max(rows(whole)["samples"], 1)


def test_a_prompt_that_waits_keeps_its_round(tmp_path):
    """Its attempts go on rising: the invariants of the simulated job look at that."""
    stage = played(tmp_path, "tail batching", keep=1, rounds=12)
    assert stage.rounds == list(range(1, 13))
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        waiting = db.execute(
            "SELECT MIN(step) FROM prompts AS p WHERE fate = 'requeued' AND NOT EXISTS"
            " (SELECT 1 FROM prompts WHERE epoch = p.epoch AND idx = p.idx AND step > p.step)"
        ).fetchone()[0]
        first = db.execute("SELECT MIN(step) FROM boundaries").fetchone()[0]
    assert waiting is None or first < waiting


@pytest.mark.parametrize("kind", ["on policy", "asynchronous"])
def test_a_trainer_that_comes_back_finds_its_boundary(tmp_path, kind):
    """Checkpoints are at every fourth round; the store keeps six."""

    async def fault(stage: Stage) -> None:
        await until(lambda: len(stage.rounds) == 19)
        stage.world.kill("trainer")

    changed = long_job(kind, 24)
    checkpoint = changed.spec.checkpoint.model_copy(update={"every_rounds": 4})
    stage = Stage(
        tmp_path / "state.db",
        job=changed.model_copy(update={"spec": changed.spec.model_copy(update={"checkpoint": checkpoint})}),
    )
    assert stage.play(fault, keep_rounds=6).outcome is FinishedOutcome.COMPLETE
    assert len(stage.rounds) > 24, "some were played again"
    verdict = audit(tmp_path)
    assert verdict.findings == ()
    assert (verdict.began, verdict.kept, verdict.ended) == (0, 18, 24)


BREAKS = {
    "a pruned round is gone": ("DELETE FROM pruned WHERE step = 3", Rule.GAP),
    "one prompt fewer was drawn": ("UPDATE pruned SET fresh = fresh - 1 WHERE step = 3", Rule.LOST),
    "one prompt more was drawn": ("UPDATE pruned SET fresh = fresh + 1, draws = draws + 1 WHERE step = 3", Rule.GAP),
    "a prompt ended twice": ("UPDATE pruned SET trained = draws + 1 WHERE step = 3", Rule.TWICE),
    "nothing was trained on": ("UPDATE pruned SET trained = 0 WHERE step = 3", Rule.GAP),
    "a round between is gone": (f"DELETE FROM boundaries WHERE step = {20 - KEPT}", Rule.GAP),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_what_is_wrong_with_the_sums_is_found(tmp_path, pruned_job, broken):
    shutil.copytree(pruned_job, tmp_path, dirs_exist_ok=True)
    assert audit(tmp_path).findings == ()
    statement, rule = BREAKS[broken]
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement)
    assert rule in {finding.rule for finding in audit(tmp_path).findings}


def test_a_new_history_begins_without_sums(tmp_path):
    played(tmp_path, "on policy", KEPT)
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(50, Cursor(3, 4)), version=99)
    assert store.boundaries.reward_ends() == (None, None)
    assert store.prune(1) is False
    store.close()
    assert rows(tmp_path)["pruned"] == 0
    verdict = audit(tmp_path)
    assert (verdict.began, verdict.kept, verdict.ended, verdict.findings) == (50, 50, 50, ())


def test_anchors_outlive_their_rounds(tmp_path):
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(0, Cursor()), {"code": {"a": 1, "b": 5}})
    for step, risen in enumerate(({"a": 2}, {}, {"c": 7}, {"a": 3}), start=1):
        with transaction(store._db):
            store._db.execute("INSERT INTO versions (version, step) VALUES (?, ?)", (step, step - 1))
            store._db.execute(
                "INSERT INTO rounds VALUES (?, ?, 'Long', 1, 1, 1, 1, 2, 0, 3, 0, ?, '[]', '[]', NULL)",
                (step, step, step),
            )
            store._db.execute("INSERT INTO prompts VALUES (?, 0, ?, 0, 'filtered', 'for the test')", (step, step - 1))
        with transaction(store._db):
            insert_boundary(store._db, Boundary(step, Cursor(0, step)), {"code": risen} if risen else {})
    known = store.boundaries.anchors()
    assert known == {"code": {"a": 3, "b": 5, "c": 7}}
    while store.prune(1):
        assert store.boundaries.anchors() == known
    assert store._db.execute("SELECT MIN(step), COUNT(*) FROM boundaries").fetchone() == (3, 2)
    assert store._db.execute("SELECT COUNT(*) FROM anchors").fetchone() == (4,), "of a: two, of which the newest holds"
    store.rewind(3)
    assert store.boundaries.anchors() == {"code": {"a": 2, "b": 5, "c": 7}}
    store.close()


def test_enough_is_kept_for_checkpoints_and_predictions():
    spec = job(every_rounds=500).spec
    assert spec.store.keep_rounds == 1000
    assert rounds_kept(spec) == 500 * (spec.checkpoint.keep + 1)
    small = spec.model_copy(update={"store": spec.store.model_copy(update={"keep_rounds": 1})})
    few = small.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"every_rounds": 1})})
    assert rounds_kept(few) == 40, "predictions look so far back"


def test_the_ends_of_the_rewards_are_those_of_all_rounds(tmp_path):
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(0, Cursor()))
    rewards = [None if step % 7 == 0 else round(step**0.5, 3) for step in range(1, 60)]

    def close(step: int) -> None:
        with transaction(store._db):
            report = RoundReport(round=step, reward=rewards[step - 1])
            insert_boundary(store._db, Boundary(step, Cursor(), report=report), {})

    def expected(steps: int) -> tuple[float, float]:
        known = [reward for reward in rewards[:steps] if reward is not None]
        fifth = max(1, len(known) // 5)
        first, last = known[:fifth], known[-fifth:]
        return float(f"{sum(first) / fifth:.4g}"), float(f"{sum(last) / fifth:.4g}")

    for step in range(1, 60):
        close(step)
        assert store.boundaries.reward_ends() == pytest.approx(expected(step), rel=1e-3)
    store.rewind(20)
    assert store.boundaries.reward_ends() == pytest.approx(expected(20), rel=1e-3)
    close(21)
    assert store.boundaries.reward_ends() == pytest.approx(expected(21), rel=1e-3)
    store.close()


# --- growth ---


PAGE_BYTES = 4096
"""SQLite's, by default."""
SUMS_BYTES = 128
"""Of a round that was pruned: its sums, its version and its rewards by rule stay, a short row each."""
NOISE_BYTES = 65_536
"""What an update more or less under way takes."""


class Costs:
    """What the store and the coordinator's own objects cost, round by round."""

    def __init__(self, stage: Stage, looks: tuple[int, ...], memory: bool = False) -> None:
        self.instructions: list[int] = []
        self.bytes: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self._stage, self._looks, self._memory, self._count = stage, looks, memory, 0
        self._store: Store | None = None
        stage.observers.append(self)

    def _step(self) -> int:
        self._count += 1
        return 0

    def __call__(self, report: RoundReport, trained: object) -> None:
        store = self._stage.store
        assert store is not None
        if store is not self._store:
            # Of SQLite's virtual machine, a hundred at a time: they do not depend on who else uses the processor.
            store._db.set_progress_handler(self._step, 100)
            self._store = store
        self.instructions.append(self._count)
        self._count = 0
        self._stage.closed.clear()
        if report.round not in self._looks:
            return
        self.bytes[report.round] = store._db.execute("PRAGMA page_count").fetchone()[0]
        if self._memory:
            gc.collect()
            ours = [tracemalloc.Filter(True, f"*/rljob_runtime/{part}/*") for part in ("coordinator", "scheduling")]
            found = tracemalloc.take_snapshot().filter_traces(ours)
            self.held[report.round] = sum(one.size for one in found.statistics("filename"))


@pytest.mark.parametrize("kind", [*slow("on policy"), "asynchronous"])
@pytest.mark.parametrize("rounds", [100, *slow(1600)])
@pytest.mark.timeout(1800)
def test_the_last_rounds_ask_of_the_store_what_the_first_ones_did(tmp_path, kind, rounds):
    first, last = 50, rounds - 10
    stage = Stage(tmp_path / "state.db", job=long_job(kind, rounds))
    costs = Costs(stage, (first, last))
    assert stage.play(keep_rounds=20).outcome is FinishedOutcome.COMPLETE
    begin = statistics.mean(costs.instructions[first - 30 : first])
    end = statistics.mean(costs.instructions[last - 30 : last])
    assert end <= 1.1 * begin, costs.instructions[::10]
    added = (costs.bytes[last] - 1.1 * costs.bytes[first]) * PAGE_BYTES
    assert added <= SUMS_BYTES * (last - first), costs.bytes


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["on policy", "asynchronous"])
def test_the_last_rounds_add_no_more_memory_than_the_first_ones_did(tmp_path, kind):
    """What each round adds is compared: the simulated trainer and its watchers keep the whole history."""
    looks = first, middle, last = 50, 150, 250
    stage = Stage(tmp_path / "state.db", job=long_job(kind, 260))
    costs = Costs(stage, looks, memory=True)
    tracemalloc.start()
    try:
        assert stage.play(keep_rounds=20).outcome is FinishedOutcome.COMPLETE
    finally:
        tracemalloc.stop()
    added = costs.held[middle] - costs.held[first], costs.held[last] - costs.held[middle]
    assert added[1] <= 1.1 * added[0] + NOISE_BYTES, costs.held
