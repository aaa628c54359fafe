"""KV handovers: runs of the real coordinator whose machines move KV in their switches, under virtual time."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.coordinator.on_policy.kv_handover import KvHandovers
from rljob_runtime.coordinator.on_policy.loop import OnPolicyLoop
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.protocols import GenerateRequest, KvSize, PeerTimeout
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.kv_drops import WAIT_SECONDS, KvDrops, KvDropTotals
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PRIORS, Part, State
from rljob_runtime.scheduling.layouts.layout_switch import SwitchLook
from rljob_runtime.scheduling.round_plan import Launch
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import LaidOut, MadeRoom
from rljob_runtime.simulator.drawn_scenario import draw_scenario, plan_of
from rljob_runtime.simulator.faults.plan import Fault, FaultPlan, FaultType
from rljob_runtime.simulator.peers.engines.kv_memory import KvMemory
from rljob_runtime.simulator.peers.engines.replica import SimulatedReplica
from rljob_runtime.simulator.run import simulate
from tests.support.kv_job import BYTE_SECONDS, KV, Later, Run
from tests.support.rows import slow
from tests.support.simulated_job import Stage, until
from tests.support.token_ledger import delay_polls


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    delay_polls(monkeypatch)


def test_responses_of_a_machine_that_switches_go_on_with_their_kv(tmp_path: Path, late: None) -> None:
    run = Run(tmp_path, 4, 1, 2)
    report = run.play()
    assert run.causes.keys() == {""}
    assert [one.state for one in report.switches] == ["Migrate"] * 3
    assert [(one.from_size, one.reached_size) for one in report.switches] == [(1, 4), (4, 1), (1, 2)]
    moved = sum(event.tokens for event in run.asked)
    assert sum(one.imported_tokens for one in run.switches) == moved > 0
    assert report.kv_bytes == sum(one.kv_bytes or 0 for one in report.switches) == moved * KV.token_bytes
    assert run.files().files == {}, "all have taken it"
    assert all(one.seconds["export"] > 0 and one.seconds["import"] > 0 for one in run.switches)
    assert all("prefill" not in one.seconds for one in run.switches)


def test_what_a_move_takes_becomes_a_rate(tmp_path: Path, late: None) -> None:
    run = Run(tmp_path, 4, 1, 4, 1, 4)
    run.play()
    for part in (Part.EXPORT, Part.IMPORT):
        assert PRIORS[part] != pytest.approx(BYTE_SECONDS)
        assert run.costs.unit(1, 4, part) == pytest.approx(BYTE_SECONDS, rel=1e-6)
    assert run.costs.kv == KV, "forecasts price a move by it"


@pytest.mark.parametrize(
    ("state", "kv", "reason"),
    [
        pytest.param(State.RECOMPUTE, KV, None, id="not wanted"),
        pytest.param(State.MIGRATE, None, "Unsupported", id="engines that cannot"),
        pytest.param(State.MIGRATE, replace(KV, room_bytes=0), "NoRoom", id="no room"),
    ],
)
def test_a_switch_without_a_file_computes_again_and_tells_why(
    tmp_path: Path, state: State, kv: KvSize | None, reason: str | None, late: None
) -> None:
    run = Run(tmp_path, 4, 1, state=state, kv=kv)
    report = run.play()
    assert run.asked == []
    assert [(one.state, one.kv_bytes) for one in report.switches] == [("Recompute", 0)] * 2
    assert all("prefill" in one.seconds and "export" not in one.seconds for one in run.switches)
    assert [one.recompute_reason for one in report.switches] == [reason] * 2
    carried = sum(one.responses for one in report.switches)
    assert [(one.reason, one.responses) for one in report.recomputed] == ([(reason, carried)] if reason else [])


TOKEN_SECONDS = 0.01
"""Of a prefill in size 4."""


class Foreseeing(Later):
    """Predicts the prefill of the responses that it sees."""

    predicted = 0.0

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        found = super().decide(look)
        for machine in (one for one in look.machines if one.name in found):
            held = [one for name in machine.engines for one in look.round_.by_replica[name]]
            self.predicted = TOKEN_SECONDS * sum(one.prompt_tokens + one.generated for one in held)
            found[machine.name] = replace(found[machine.name], prefill_seconds=self.predicted)
        return found


@pytest.mark.parametrize("most", [1024, 4], ids=["all run", "some wait for a place"])
def test_a_prefill_in_several_passes_is_measured_to_its_end(tmp_path: Path, most: int) -> None:
    """The first token comes after the first of a dozen passes."""
    run = Run(tmp_path, kv=None)
    run.policy = run.stage.switch_policy = policy = Foreseeing("rollout-0", 4, state=State.RECOMPUTE, unfinished=6)
    site = run.stage.world.site
    latency = LatencyModel(((1, 0.005),), 0.0, 0.0, TOKEN_SECONDS, 0.0)
    wide = replace(site.engine, latency=latency, prefill_budget=1, max_sequences=most)
    run.stage.world.site = replace(site, wider=tuple((size, wide) for size, _ in site.wider))
    run.play()
    (switch,) = run.switches
    factor = switch.seconds["prefill"] / policy.predicted
    if most < len(switch.responses):
        assert factor < 0.9, "those that wait for an end of another response are not awaited"
        assert run.costs.unit(1, 4, Part.PREFILL) == PRIORS[Part.PREFILL]
    else:
        assert 0.9 < factor < 1.2
        assert run.costs.unit(1, 4, Part.PREFILL) == pytest.approx(factor)


def test_kv_that_is_damaged_is_computed_again_and_told(tmp_path: Path, late: None) -> None:
    run = Run(tmp_path, 4)

    async def damage(stage: Stage) -> None:
        stage.world.machine("rollout-0").kv.damaging += 1

    report = run.play(damage)
    assert run.causes.keys() == {"damaged"}
    assert [(one.state, one.kv_bytes) for one in report.switches] == [("Recompute", 0)]
    assert [one.reason for one in report.recomputed] == ["Damaged"]
    assert run.costs.unit(1, 4, Part.IMPORT) == PRIORS[Part.IMPORT], "nothing was copied"


def test_kv_that_is_gone_is_computed_again(tmp_path: Path, late: None) -> None:
    run = Run(tmp_path, 4)

    async def lose(stage: Stage) -> None:
        await until(lambda: any(isinstance(one, MadeRoom) for one in run.events), tick=0.001)
        run.files().files.clear()

    report = run.play(lose)
    assert run.causes.keys() == {"missing"}
    assert [(one.state, one.kv_bytes) for one in report.switches] == [("Recompute", 0)]
    assert [one.recompute_reason for one in report.switches] == ["Missing"]


def test_an_export_that_fails_loses_the_machine_and_no_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    async def fails(self: SimulatedReplica, term: int, attempts: Any) -> Any:
        raise PeerTimeout("no answer")

    monkeypatch.setattr(SimulatedReplica, "export_kv", fails)
    run = Run(tmp_path, 4)
    finished = run.stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    ids = run.stage.trained_ids()
    assert len(ids) == len(set(ids)) == 6 * 4
    assert run.asked == []


def test_a_machine_that_dies_in_its_switch_takes_its_files_with_it(tmp_path: Path, late: None) -> None:
    run = Run(tmp_path, 4)

    async def kill(stage: Stage) -> None:
        await until(lambda: any(isinstance(one, MadeRoom) for one in run.events), tick=0.01)
        stage.world.kill("rollout-0")

    run.play(kill)
    assert run.asked == []


def test_a_refused_size_gives_the_kv_back_to_the_size_before(tmp_path: Path, late: None) -> None:
    run = Run(tmp_path, 4)
    run.stage.world.site = replace(run.stage.world.site, wider=run.stage.world.site.wider[:1])
    report = run.play()
    assert run.causes.keys() == {""}
    assert [(one.reached_size, one.state) for one in report.switches] == [(1, "Migrate")]
    assert run.costs.unit(1, 4, Part.IMPORT) == PRIORS[Part.IMPORT], "size 4 has taken nothing"


def test_files_end_with_their_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None) -> None:
    """Even if some responses never took theirs: the next round has other weights."""
    monkeypatch.setattr(KvHandovers, "end_taken", lambda *_: None)
    run = Run(tmp_path, 4, rounds=2)
    left: list[int] = []
    run.stage.observers.append(lambda report, _: left.append(len(run.files().files)))
    monkeypatch.setattr(KvMemory, "drop_older", lambda *_: None)
    run.play()
    assert run.asked
    assert left == [0, 0]


def test_a_new_coordinator_names_no_file_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    monkeypatch.setattr(KvHandovers, "close", lambda self: None)  # A killed coordinator drops nothing.
    run = Run(tmp_path, 4)

    async def lives() -> Any:
        task = asyncio.create_task(run.stage.coordinate())
        await until(lambda: any(isinstance(one, LaidOut) and one.tensor_parallel == 4 for one in run.events), 0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(run.files().files) == 4
        return await run.stage.coordinate()

    assert virtual_time.run(lives()).outcome is FinishedOutcome.COMPLETE
    assert run.asked == []
    assert run.files().files == {}
    db = sqlite3.connect(run.stage.path)
    assert db.execute("SELECT COUNT(*) FROM trajectories").fetchone()[0] == 6 * 4
    db.close()


class Drops:
    """Calls of `drop_kv` at one replica of rollout-0 that fail, after they hung for some seconds."""

    def __init__(self, run: Run, monkeypatch: pytest.MonkeyPatch, failures: int, hangs: float = 0.0) -> None:
        self.run = run
        self.calls: list[tuple[float, str]] = []
        drop, left = SimulatedReplica.drop_kv, [failures]

        async def drops(replica: SimulatedReplica, term: int) -> None:
            self.calls.append((asyncio.get_running_loop().time(), replica.name))
            if replica.name == "rollout-0/replica-0" and left[0]:
                left[0] -= 1
                await asyncio.sleep(hangs)
                raise PeerTimeout("no answer")
            await drop(replica, term)

        monkeypatch.setattr(SimulatedReplica, "drop_kv", drops)
        # Nothing else removes a file.
        monkeypatch.setattr(KvMemory, "drop_older", lambda *_: None)

    def at(self, replica: int) -> list[float]:
        return [at for at, name in self.calls if name == f"rollout-0/replica-{replica}"]

    @property
    def record(self) -> KvDrops:
        coordinator = self.run.stage.coordinator
        assert coordinator is not None
        assert isinstance(coordinator.loop, OnPolicyLoop)
        return coordinator.loop._context.fleet.joined["rollout-0"].kv_drops


def test_a_replica_that_hangs_holds_back_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    run = Run(tmp_path, 4)
    drops = Drops(run, monkeypatch, failures=1, hangs=2.0)
    run.play()
    assert [len(drops.at(replica)) for replica in range(4)] == [2, 1, 1, 1]
    assert {round(drops.at(replica)[0] - drops.at(0)[0], 2) for replica in range(4)} <= {0.0, 0.01}
    assert run.files().files == {}, "the second try has removed it"
    assert drops.record.totals == KvDropTotals(removed=4, failures=1, retries=1)
    assert run.stage.coordinator is not None
    assert run.stage.coordinator.layout_stats().kv_drops == drops.record.totals


def test_a_kv_file_left_in_its_round_is_removed_in_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    monkeypatch.setattr(KvHandovers, "end_taken", at_the_end(KvHandovers.end_taken))
    run = Run(tmp_path, 4, rounds=3)
    drops = Drops(run, monkeypatch, failures=2)
    left: list[int] = []
    run.stage.observers.append(lambda report, _: left.append(len(run.files().files)))
    run.play()
    assert left[0] == 1
    assert left[-1] == 0
    assert (drops.record.totals.removed, drops.record.totals.failures) == (4, 2)
    first, second, third = drops.at(0)
    assert second - first >= 1.0
    assert third - second >= 4.0


@pytest.mark.parametrize("tail", [None, {"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}])
def test_a_round_goes_on_while_a_machine_takes_its_kv(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    late: None,
    tail: dict[str, Any] | None,
) -> None:
    """Also if responses there lose their race: as a real engine, a replica aborts nothing before it has the KV."""
    submit, abort, end_taken = SimulatedReplica.submit, SimulatedReplica.abort, KvHandovers.end_taken
    taking: list[tuple[float, float]] = []
    passes: list[float] = []
    dropped: list[TrajectoryKey] = []
    drop = ReplicaPool.drop
    has_kv: dict[SimulatedReplica, asyncio.Event] = {}

    async def slow_submit(self: SimulatedReplica, term: int, requests: Sequence[GenerateRequest]) -> None:
        since = asyncio.get_running_loop().time()
        if any(one.kv_file is not None for one in requests):
            has_kv[self] = asyncio.Event()
            await asyncio.sleep(9.0)
            taking.append((since, asyncio.get_running_loop().time()))
            has_kv[self].set()
        await submit(self, term, requests)

    async def late_abort(self: SimulatedReplica, term: int, attempts: Any) -> None:
        if (taken := has_kv.get(self)) is not None:
            await taken.wait()
        await abort(self, term, attempts)

    async def counted_drop(self: ReplicaPool, launches: Iterable[Launch]) -> None:
        launches = list(launches)
        taking_now = {one.name for one, taken in has_kv.items() if not taken.is_set()}
        dropped.extend(one.key for one in launches if one.lease.replica in taking_now)
        await drop(self, launches)

    def counted(self: KvHandovers, *args: Any) -> None:
        passes.append(asyncio.get_running_loop().time())
        end_taken(self, *args)

    monkeypatch.setattr(SimulatedReplica, "submit", slow_submit)
    monkeypatch.setattr(SimulatedReplica, "abort", late_abort)
    monkeypatch.setattr(ReplicaPool, "drop", counted_drop)
    monkeypatch.setattr(KvHandovers, "end_taken", counted)
    run = Run(tmp_path, 4, tail=tail, rounds=4)
    assert run.stage.play().outcome is FinishedOutcome.COMPLETE
    assert [one.state for one in run.switches] == [State.MIGRATE]
    ((since, until),) = taking
    assert bool(dropped) == (tail is not None)
    assert sum(since < one < until for one in passes) > 5
    pauses = [late - early for early, late in pairwise(passes) if since < early < until]
    assert max(pauses) < 1.0
    assert "lost:" not in caplog.text


def at_the_end(end_taken: Callable[..., None]) -> Callable[..., None]:
    """No handover ends before its round, as if a response still needed it."""

    def ends(self: KvHandovers, *_: Any) -> None:
        end_taken(self, lambda key: True, lambda key: None, lambda key: 0)

    return ends


def test_an_export_does_not_wait_for_a_removal_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    """A late removal would take the new file. So the replica computes again, and no one waits for long."""
    run = Run(tmp_path, 4, 1)
    drops = Drops(run, monkeypatch, failures=1, hangs=4.0)
    report = run.play()
    assert [(one.state, one.recompute_reason) for one in report.switches] == [
        ("Migrate", None), ("Recompute", "Dropping"),
    ]  # fmt: skip
    stopped = run.switches[1].seconds["stop"]
    assert WAIT_SECONDS <= stopped < WAIT_SECONDS + 0.5
    assert run.files().files == {}
    assert drops.record.totals.failures == 1


@pytest.mark.parametrize("seed", [2, *slow(1, *range(3, 12))])
def test_kv_that_moves_under_faults_breaks_no_invariant(seed: int) -> None:
    scenario = replace(draw_scenario(seed), episodes=None)
    replicas = 4 if scenario.site.replicas % 4 == 0 else 2
    engine = replace(scenario.site.engine, kv=KV, kv_byte_seconds=BYTE_SECONDS)
    wider = tuple((size, replace(engine, kv_tokens=2 * size * engine.kv_tokens)) for size in (2, 4) if size <= replicas)
    site = replace(scenario.site, replicas=replicas, engine=engine, wider=wider, layout_seconds=0.3)
    forced = replace(scenario, site=site, switches=True)
    damaged = Fault(0.0, FaultType.KV_DAMAGED, "rollout-0", 100.0)
    for plan in (FaultPlan(), FaultPlan((damaged,)), plan_of(forced)):
        result = simulate(forced, plan)
        assert result.passed, f"{result.violation} under {plan}"
