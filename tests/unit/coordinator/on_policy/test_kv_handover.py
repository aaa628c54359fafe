"""KV handovers: runs of the real coordinator whose machines move KV in their switches, under virtual time."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import FinishedOutcome, LayoutSwitchesReport
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.on_policy.kv_handover import KvHandovers
from rljob_runtime.coordinator.on_policy.loop import OnPolicyLoop
from rljob_runtime.coordinator.on_policy.switch_report import switches_report
from rljob_runtime.coordinator.on_policy.switcher import Switcher
from rljob_runtime.protocols import GenerateRequest, KvSize, PeerTimeout
from rljob_runtime.scheduling import layout_switch
from rljob_runtime.scheduling.adaptive_tp.kv_drops import WAIT_SECONDS, KvDrops, KvDropTotals
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PRIORS, Part, State, SwitchCosts
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch, SwitchLook
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Event, KvAsked, LaidOut, MadeRoom
from rljob_runtime.simulator.drawn_scenario import draw_scenario, plan_of
from rljob_runtime.simulator.faults.plan import Fault, FaultPlan, FaultType
from rljob_runtime.simulator.peers.engines.kv_memory import KV_BLOCK, KvMemory
from rljob_runtime.simulator.peers.engines.replica import SimulatedReplica
from rljob_runtime.simulator.run import simulate
from tests.support.forced_switches import Script
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job, until
from tests.support.token_ledger import TokenLedger, delay_polls

KV = KvSize(heads=2, head_bytes=1000, room_bytes=1 << 30)
BYTE_SECONDS = 1e-7


class Later(Script):
    """Switches while responses have several blocks of KV each."""

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        machines = [one for one in look.machines if min(one.responses.values(), default=0) >= 2 * KV_BLOCK]
        return super().decide(replace(look, machines=machines))


class Together(Later):
    """Switches both machines after the same look."""

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        found, left = super().decide(look), list(self.left)
        if len(found) == 1:
            self.left = [decision.target for decision in found.values() if decision.target] + left
        return found if len(found) > 1 else {}


class Run:
    """A job whose machines switch as told, with engines that move KV."""

    def __init__(
        self, folder: Path, *sizes: int, state: State = State.MIGRATE, kv: KvSize | None = KV, rounds: int = 1
    ) -> None:
        layouts = {"slotsPerMachine": 4, "allowedTensorParallelSizes": [1, 2, 4], "engine": "Reference", "machines": 2}
        spec = job(rounds=rounds, prompts=6, responses=4, rollout=layouts, data={"maxResponseTokens": 400})
        self.stage = Stage(folder / "state.db", job=spec, replicas=4, sizes=(1, 2, 4))
        site = self.stage.world.site
        wider = tuple((size, replace(engine, kv=kv, kv_byte_seconds=BYTE_SECONDS)) for size, engine in site.wider)
        self.stage.world.site = replace(
            site, engine=replace(site.engine, kv=kv, kv_byte_seconds=BYTE_SECONDS), wider=wider
        )
        self.policy = self.stage.switch_policy = Later("rollout-0", *sizes, state=state)
        self.tokens = TokenLedger()
        self.events: list[Any] = []
        self.stage.watchers += [self.tokens, self.events.append]
        self.switches: list[LayoutSwitch] = []
        self.costs = SwitchCosts()
        self.stage.watchers.append(self._watch)

    def _watch(self, event: Event) -> None:
        coordinator = self.stage.coordinator
        if isinstance(event, MadeRoom) and coordinator is not None and isinstance(coordinator.loop, OnPolicyLoop):
            switcher = coordinator.loop.generation and coordinator.loop.generation.switcher
            if switcher:
                self.switches += [one for one in switcher.switches if one not in self.switches]
                self.costs = switcher.costs

    def play(self, *also: Callable[..., Any]) -> LayoutSwitchesReport:
        finished = self.stage.play(*also)
        assert finished is not None
        assert finished.outcome is FinishedOutcome.COMPLETE
        ids = self.stage.trained_ids()
        assert len(ids) == len(set(ids)) == len(self.stage.closed) * 6 * 4
        assert self.tokens.lost == {}
        return switches_report(self.switches, None)

    @property
    def asked(self) -> list[KvAsked]:
        return [event for event in self.events if isinstance(event, KvAsked)]

    @property
    def causes(self) -> Counter[str]:
        return Counter(event.cause for event in self.asked)

    def files(self, machine: str = "rollout-0") -> KvMemory:
        return self.stage.world.machine(machine).kv


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
    ("state", "kv"),
    [(State.RECOMPUTE, KV), (State.MIGRATE, None), (State.MIGRATE, replace(KV, room_bytes=0))],
    ids=["not wanted", "engines that cannot", "no room"],
)
def test_a_switch_without_a_file_computes_again(tmp_path: Path, state: State, kv: KvSize | None, late: None) -> None:
    run = Run(tmp_path, 4, 1, state=state, kv=kv)
    report = run.play()
    assert run.asked == []
    assert [(one.state, one.kv_bytes) for one in report.switches] == [("Recompute", 0)] * 2
    assert all("prefill" in one.seconds and "export" not in one.seconds for one in run.switches)


def test_kv_that_is_damaged_is_computed_again_and_told(tmp_path: Path, late: None) -> None:
    run = Run(tmp_path, 4)

    async def damage(stage: Stage) -> None:
        stage.world.machine("rollout-0").kv.damaging += 1

    report = run.play(damage)
    assert run.causes.keys() == {"damaged"}
    assert [(one.state, one.kv_bytes) for one in report.switches] == [("Recompute", 0)]
    assert run.costs.unit(1, 4, Part.IMPORT) == PRIORS[Part.IMPORT], "nothing was copied"


def test_kv_that_is_gone_is_computed_again(tmp_path: Path, late: None) -> None:
    run = Run(tmp_path, 4)

    async def lose(stage: Stage) -> None:
        await until(lambda: any(isinstance(one, MadeRoom) for one in run.events), tick=0.001)
        run.files().files.clear()

    report = run.play(lose)
    assert run.causes.keys() == {"missing"}
    assert [(one.state, one.kv_bytes) for one in report.switches] == [("Recompute", 0)]


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


def test_a_file_that_was_not_removed_in_its_round_is_removed_in_a_later_one(
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


def delay_exports(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> list[float]:
    """Delay exports by machine; return the list of times at which they begin."""
    export, began = SimulatedReplica.export_kv, []

    async def slow_export(self: SimulatedReplica, term: int, attempts: Any) -> Any:
        began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(seconds[machine_of(self.name)])
        return await export(self, term, attempts)

    monkeypatch.setattr(SimulatedReplica, "export_kv", slow_export)
    return began


def both(folder: Path) -> Run:
    run = Run(folder)
    run.policy = run.stage.switch_policy = Together(None, 4, 4, state=State.MIGRATE)
    return run


def test_machines_of_one_look_write_their_kv_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    began = delay_exports(monkeypatch, {"rollout-0": 0.5, "rollout-1": 2.0})
    run = both(tmp_path)
    report = run.play()
    assert [one.state for one in report.switches] == ["Migrate"] * 2
    assert len(began) == 8
    assert max(began) - min(began) < 0.1
    waits, stops = zip(*((one.seconds.get("wait", 0.0), one.seconds["stop"]) for one in run.switches), strict=True)
    assert waits == (pytest.approx(1.5, abs=0.1), 0.0)
    assert stops == (pytest.approx(0.5, abs=0.2), pytest.approx(2.0, abs=0.2)), "each its own"
    assert all(one.total_seconds > 2.0 for one in run.switches)


def test_a_round_goes_on_while_a_machine_takes_its_kv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    submit, end_taken = SimulatedReplica.submit, KvHandovers.end_taken
    taking: list[tuple[float, float]] = []
    passes: list[float] = []

    async def slow_submit(self: SimulatedReplica, term: int, requests: Sequence[GenerateRequest]) -> None:
        since = asyncio.get_running_loop().time()
        if any(one.kv_file is not None for one in requests):
            await asyncio.sleep(3.0)
            taking.append((since, asyncio.get_running_loop().time()))
        await submit(self, term, requests)

    def counted(self: KvHandovers, *args: Any) -> None:
        passes.append(asyncio.get_running_loop().time())
        end_taken(self, *args)

    monkeypatch.setattr(SimulatedReplica, "submit", slow_submit)
    monkeypatch.setattr(KvHandovers, "end_taken", counted)
    run = Run(tmp_path, 4)
    report = run.play()
    assert [one.state for one in report.switches] == ["Migrate"]
    ((since, until),) = taking
    assert sum(since < one < until for one in passes) > 5
    assert run.switches[0].seconds["import"] > 3.0


def test_a_machine_that_does_not_stop_is_lost_and_holds_back_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: None
) -> None:
    monkeypatch.setattr(layout_switch, "STOP_SECONDS", 3.0)
    began = delay_exports(monkeypatch, {"rollout-0": 0.0, "rollout-1": 20.0})
    run = both(tmp_path)
    starts: list[float] = []
    start = Switcher.start

    def starts_at(self: Switcher, *args: Any) -> None:
        starts.append(asyncio.get_running_loop().time())
        start(self, *args)

    monkeypatch.setattr(Switcher, "start", starts_at)
    finished = run.stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    ids = run.stage.trained_ids()
    assert len(ids) == len(set(ids)) == 6 * 4
    assert [(one.machine, one.reached) for one in run.switches] == [("rollout-0", 4), ("rollout-1", 0)]
    assert all(at - began[0] == pytest.approx(3.0, abs=0.5) for at in starts)


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
    assert [one.state for one in report.switches] == ["Migrate", "Recompute"]
    stopped = run.switches[1].seconds["stop"]
    assert WAIT_SECONDS <= stopped < WAIT_SECONDS + 0.5
    assert run.files().files == {}
    assert drops.record.totals.failures == 1


@pytest.mark.parametrize("seed", [1, *slow(*range(2, 12))])
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
