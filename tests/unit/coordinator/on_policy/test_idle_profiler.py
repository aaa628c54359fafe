"""Idle profiles in complete jobs under virtual time: what is measured, and that no stage begins later for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.status import FinishedOutcome, RoundReport
from rljob_runtime.coordinator.evaluation.evaluator import Evaluator
from rljob_runtime.coordinator.on_policy import idle_profiler
from rljob_runtime.coordinator.on_policy.loop import OnPolicyLoop
from rljob_runtime.coordinator.reporting.layout_stats import VisitTotals
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.perf_model.observed_speed import Speed, fit_latency
from rljob_runtime.protocols import EngineProfile, KvSize, PeerTimeout, ProfileLimits
from rljob_runtime.scheduling.adaptive_tp import idle_profile
from rljob_runtime.scheduling.adaptive_tp.idle_profile import IdleOutcome, IdleProfile, Rest, RestingMachine
from rljob_runtime.scheduling.adaptive_tp.switch_costs import Part
from rljob_runtime.scheduling.layouts.layout_switch import NeverSwitch
from rljob_runtime.simulator.core.events import LaidOut, Profiled, Submitted
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.peers.engines.engine_kind import steady
from rljob_runtime.simulator.peers.engines.replica import SimulatedReplica
from tests.support.simulated_job import Stage, job
from tests.support.token_ledger import TokenLedger

UPDATE = 40.0


class Job:
    """Rounds of two machines with four accelerators each. Sizes change in no round: machines only measure them."""

    def __init__(self, folder: Path, *, enabled: bool = True, rounds: int = 4, updates: Sequence[float] = ()) -> None:
        rollout = {"slotsPerMachine": 4, "allowedTensorParallelSizes": [1, 2, 4], "engine": "Reference", "machines": 2}
        spec = job(
            rounds=rounds, prompts=6, responses=4, rollout=rollout, adaptiveTensorParallel={"enabled": enabled},
            data={"maxResponseTokens": 100},
        )  # fmt: skip
        self.stage = Stage(
            folder / "state.db", job=spec, replicas=4, sizes=(1, 2, 4), switch_policy=NeverSwitch() if enabled else None
        )
        self.stage.world.site = replace(self.stage.world.site, layout_seconds=1.0)
        self.tokens, self.profiled, self.began = TokenLedger(), list[Profiled](), dict[int, float]()
        self.laid: list[tuple[str, int]] = []
        self.seconds: list[float] = []
        self._updates = iter(updates)
        self.stage.watchers += [self.tokens, self._watch]
        self.stage.observers.append(self._closed)
        self._set_update()

    def _set_update(self) -> None:
        costs = self.stage.world.costs
        self.stage.world.costs = replace(costs, step=next(self._updates, UPDATE), publish=0.0)
        if (trainer := self.stage.world.process("trainer")) is not None:
            trainer.peer._costs = self.stage.world.costs

    def _closed(self, report: RoundReport, _: object) -> None:
        self.seconds.append(report.seconds or 0.0)
        self._set_update()

    def _watch(self, event: object) -> None:
        match event:
            case Profiled():
                self.profiled.append(event)
            case LaidOut():
                self.laid.append((event.replica, event.tensor_parallel))
            case Submitted():
                self.began.setdefault(event.version, loop_time())

    def play(self, **settings: object) -> None:
        assert self.stage.play(**settings).outcome is FinishedOutcome.COMPLETE
        assert self.tokens.lost == {}
        ids = self.stage.trained_ids()
        assert len(ids) == len(set(ids)) == len(self.stage.closed) * 6 * 4
        assert {report.tensor_parallel_size for report in self.stage.closed} == {1}

    @property
    def loop(self) -> OnPolicyLoop:
        assert self.stage.coordinator is not None
        assert isinstance(self.stage.coordinator.loop, OnPolicyLoop)
        return self.stage.coordinator.loop

    @property
    def delays(self) -> tuple[int, float]:
        return self.totals.delays, self.totals.delay_seconds

    @property
    def totals(self) -> VisitTotals:
        """What a scrape of the metrics shows."""
        assert self.stage.coordinator is not None
        return self.stage.coordinator.layout_stats().visits

    def speeds(self) -> dict[int, tuple[Speed, ...]]:
        store = Store(self.stage.path, "uid-1")
        try:
            return store.speeds(9)
        finally:
            store.close()


def test_resting_machines_measure_each_size_and_no_stage_begins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Job(tmp_path)
    run.play()
    assert {one.tensor_parallel for one in run.profiled} == {2, 4}
    assert all(one.loads >= 4 for one in run.profiled)
    assert run.totals.visits == 4, "two machines, two sizes, and nothing new after them"
    assert run.totals.loads == sum(one.loads for one in run.profiled)
    assert run.delays == (0, 0.0)
    speeds = run.speeds()
    assert set(speeds) == {1, 2, 4}
    for size in (2, 4):
        latency = fit_latency(speeds[size])
        assert latency is not None
        assert latency.step(8, 800) == pytest.approx(0.02 / size, rel=0.05)
    assert {one.profiled for speed in speeds[1] for one in speed.stretches} == {False}

    monkeypatch.setattr(idle_profiler, "plan_profiles", lambda *_: {})
    (tmp_path / "without").mkdir()
    without = Job(tmp_path / "without")
    without.play()
    assert without.profiled == []
    assert run.began == pytest.approx(without.began, abs=0.02), "each stage began when it does without profiles"
    assert run.seconds == pytest.approx(without.seconds, abs=0.05)


def test_a_visit_measures_the_parts_of_a_switch(tmp_path: Path) -> None:
    run = Job(tmp_path)
    run.play()
    costs = run.loop._switch_costs
    assert costs._pairs[1, 2].of(Part.BUILD) == pytest.approx([1.0, 1.0], abs=0.02)
    assert costs._pairs[2, 1].of(Part.WAKE) == pytest.approx([1.0, 1.0], abs=0.02)
    assert len(costs._pairs[1, 4].of(Part.LOAD)) == 2


def test_copies_of_kv_are_known_before_the_first_switch(tmp_path: Path) -> None:
    """Each pair of sizes has its rates from a visit: a switch would measure only the state that it chose."""
    run = Job(tmp_path)
    kv, rate = KvSize(4, 1000, 1 << 40), 2e-9
    kinds = (run.stage.world.site.engine, *(kind for _, kind in run.stage.world.site.wider))
    first, *wider = (replace(kind, kv=kv, kv_byte_seconds=rate) for kind in kinds)
    run.stage.world.site = replace(run.stage.world.site, engine=first, wider=tuple(zip((2, 4), wider, strict=True)))
    run.play()
    costs = run.loop._switch_costs
    for size in (2, 4):
        assert costs._pairs[size, 1].of(Part.EXPORT) == pytest.approx([rate] * 2)
        assert costs._pairs[1, size].of(Part.IMPORT) == pytest.approx([rate] * 2)
    assert costs.unit(1, 2, Part.EXPORT) == pytest.approx(rate), "believed: four visits measured it"
    assert run.delays == (0, 0.0)


def test_an_update_that_ends_early_ends_the_profile(tmp_path: Path) -> None:
    run = Job(tmp_path, updates=[UPDATE, 6.0])
    wider = tuple((size, steady(0.5)) for size in (2, 4))
    run.stage.world.site = replace(run.stage.world.site, wider=wider)
    run.play()
    first = run.profiled[:3]
    assert all(one.loads < 4 for one in first), "they were at work when the update ended"
    count, seconds = run.delays
    assert count == 2
    assert 0.0 < seconds / count < 1.5, "the way back only, not the rest of the profile"
    assert run.speeds().keys() == {1}, "a few loads make no latency model"


def test_a_profile_that_made_a_stage_wait_needs_longer_updates(tmp_path: Path) -> None:
    run = Job(tmp_path, rounds=5, updates=[UPDATE, 6.0])
    run.stage.world.site = replace(run.stage.world.site, wider=tuple((size, steady(0.5)) for size in (2, 4)))
    run.play()
    assert run.totals.visits == 2, "the short update counts, and its delay halves what may be used"


@pytest.mark.parametrize(
    ("more", "rounds"),
    [({"enabled": False}, 3), ({}, 1), ({"updates": [2.0] * 3}, 3)],
    ids=["without adaptive tensor parallelism", "before an update has ended", "updates are too short"],
)
def test_no_machine_measures(tmp_path: Path, more: dict[str, object], rounds: int) -> None:
    run = Job(tmp_path, rounds=rounds, **more)  # type: ignore[arg-type]
    run.play()
    assert run.profiled == []
    assert {size for _, size in run.laid} == {1}
    assert run.totals == VisitTotals()


@pytest.fixture
def earns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs earn ten times as much, so that they need no hundred rounds of a few seconds."""
    for name in ("OVERRUN_SHARE", "SAVED_SHARE"):
        monkeypatch.setattr(idle_profile, name, 10 * getattr(idle_profile, name))


def short(folder: Path, rounds: int) -> Job:
    """A job with stages of 20 s and updates of 2 s. A visit outlasts one by 6 s at most."""
    run = Job(folder, rounds=rounds, updates=[2.0] * (rounds + 1))
    wider = tuple((size, steady(0.2 / size)) for size in (2, 4))
    run.stage.world.site = replace(run.stage.world.site, engine=steady(0.2), wider=wider)
    return run


@pytest.mark.usefixtures("earns")
def test_a_job_of_short_updates_measures_each_size_once(tmp_path: Path) -> None:
    """No update is long enough. Each size costs about 6 s, which 3 rounds of 22 s earn."""
    run = short(tmp_path, rounds=8)
    run.play()
    assert [one.tensor_parallel for one in run.profiled] == [2, 2, 4]
    assert all(one.loads >= 3 for one in run.profiled), "two batches and two lengths make a latency model"
    assert {one.replica.partition("/")[0] for one in run.profiled} == {"rollout-0"}, "one machine, all others wait"
    assert run.speeds().keys() == {1, 2, 4}
    count, seconds = run.delays
    assert count == run.totals.overruns == 2
    assert run.totals.unforeseen == 0, "later visits may take as much of an update as before"
    assert 0 < seconds <= run.loop.profiler._overrun <= idle_profile.OVERRUN_SHARE * sum(run.seconds)


@pytest.mark.usefixtures("earns")
@pytest.mark.parametrize("rounds", [2, 3], ids=["it is too young", "no round is left that repays it"])
def test_no_visit_outlasts_an_update_in_a_short_job(tmp_path: Path, rounds: int) -> None:
    run = short(tmp_path, rounds)
    run.play()
    assert run.totals == VisitTotals()


@pytest.mark.parametrize("build", [4.0, 20.0], ids=["faster than predicted", "slower than predicted"])
def test_an_overrun_longer_than_predicted_is_spent_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: float
) -> None:
    """The relay has the next weights by then. The machine measures with them, and stays a member."""
    planned: list[IdleProfile] = []

    def once(machines: list[RestingMachine], known: object, rest: Rest, *_: object) -> dict[str, IdleProfile]:
        if planned or not rest.updates:
            return {}
        planned.append(IdleProfile(IdleOutcome.OVERRUNS, 2, until=15.0, overrun=10.0))
        return {machines[0].name: planned[0]}

    monkeypatch.setattr(idle_profiler, "plan_profiles", once)
    run = Job(tmp_path, rounds=4, updates=[2.0] * 5)
    run.stage.world.site = replace(run.stage.world.site, layout_seconds=build)
    run.play()
    in_time = build < 15.0
    assert [one.tensor_parallel for one in run.profiled] == ([2, 2] if in_time else [])
    assert all(one.loads >= 4 for one in run.profiled)
    waited = run.totals.delay_seconds
    assert waited == pytest.approx(2 * build, abs=3.0), "there and back; the first 2 s were those of the update"
    assert run.loop.profiler._overrun == pytest.approx(10.0 if in_time else waited, abs=0.5)
    (visit,) = [one for one in run.loop._context.fleet.joined.values() if one.name == "rollout-0"]
    assert visit.member.incarnation == 1, "it was not lost"


def test_engines_that_evaluate_do_not_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evaluator, "active", property(lambda _: True))
    run = Job(tmp_path, rounds=3)
    run.play()
    assert run.profiled == []


def test_a_size_that_is_refused_is_left_alone(tmp_path: Path) -> None:
    run = Job(tmp_path)
    run.stage.world.site = replace(run.stage.world.site, wider=run.stage.world.site.wider[:1])
    run.play()
    assert {one.tensor_parallel for one in run.profiled} == {2}
    assert run.totals.visits == 4, "a refused size is asked for once on each machine"
    fleet = run.loop._context.fleet
    assert all(set(fleet.layouts.refused(name)) == {4} for name in fleet.machines)
    assert run.delays == (0, 0.0)


def test_a_machine_that_fails_in_a_profile_is_lost_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []

    async def fails(self: SimulatedReplica, term: int, limits: ProfileLimits) -> EngineProfile:
        failed.append(self.name)
        raise PeerTimeout("no answer")

    monkeypatch.setattr(SimulatedReplica, "profile", fails)
    run = Job(tmp_path, rounds=6)
    run.play()
    assert failed
    assert run.totals.loads == 0
    assert run.totals.visits <= 12, "nothing came of them, so they end"
    assert run.speeds().keys() == {1}


def test_a_policy_that_fails_costs_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(idle_profiler, "plan_profiles", fails)
    run = Job(tmp_path, rounds=2)
    run.stage.invariants.policies_fail = True
    run.play()
    assert run.profiled == []
    assert run.stage.control is not None
    assert any("idle-time profiles" in one.message for one in run.stage.control.reports[-1].warnings)
