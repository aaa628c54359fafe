"""What fails while a machine switches: each row of the table of failures, at each step of a switch."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import Finished, FinishedOutcome, TargetPhase
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.protocols import KeptEngines, Refused
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import KvAsked, LaidOut, Loaded, MadeRoom, Submitted
from rljob_runtime.simulator.core.network import FaultKind
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane
from rljob_runtime.simulator.peers.engines.replica import SimulatedReplica
from tests.support.kv_job import Run, delay_exports
from tests.support.rows import slow
from tests.support.simulated_job import Stage, until
from tests.support.token_ledger import delay_polls

VICTIM = "rollout-0"
RANK = f"{VICTIM}/replica-0"
PARTS = 0.6
"""Seconds of an export, of a start of engines, and of a load: a fault in the middle meets none of the others."""


class Switch:
    """A run whose first machine switches to size 4, with every step of it long enough to be met by a fault."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 1) -> None:
        delay_polls(monkeypatch)
        self.began = delay_exports(monkeypatch, {VICTIM: PARTS, "rollout-1": 0.0})
        self.run = Run(folder, 4, rounds=rounds)
        world = self.run.stage.world
        wider = tuple((size, replace(engine, load_seconds=PARTS)) for size, engine in world.site.wider)
        world.site = replace(world.site, wider=wider, layout_seconds=PARTS)

    def _seen(self, kind: type, which: Callable[[Any], bool] = lambda event: True) -> bool:
        found = [one for one in self.run.events if isinstance(one, kind) and machine_of(one.replica) == VICTIM]
        return any(which(one) for one in found)

    async def at(self, step: str) -> None:
        """Wait until the switch is in the middle of this step."""
        begins: dict[str, Callable[[], bool]] = {
            "export": lambda: bool(self.began),
            "start": lambda: self._seen(MadeRoom),
            "load": lambda: self._seen(LaidOut, lambda event: event.tensor_parallel == 4),
            "import": lambda: self._seen(KvAsked),
            "after": lambda: self._seen(Loaded) and self._seen(Submitted, lambda event: event.attempt > 1),
        }
        await until(begins[step], tick=0.01)
        await asyncio.sleep(PARTS / 4 if step in ("export", "start", "load") else 0.0)

    def play(self, step: str, fault: Callable[[Stage], None]) -> None:
        """Run to the end with a fault in the middle of this step."""

        async def make(stage: Stage) -> None:
            await self.at(step)
            fault(stage)

        self.check(self.run.stage.play(make))

    def check(self, finished: Finished | None) -> None:
        """Nothing is lost, and nothing happened twice."""
        assert finished is not None
        assert finished.outcome is FinishedOutcome.COMPLETE
        ids = self.run.stage.trained_ids()
        assert len(ids) == len(set(ids)) == len(self.run.stage.closed) * 6 * 4


STEPS = ("export", "start", "load", "import", "after")


@pytest.mark.parametrize("step", ["start", *slow("export", "load", "import", "after")])
def test_a_rank_that_dies_loses_its_machine_and_no_response(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = Switch(tmp_path, monkeypatch)
    switch.play(step, lambda stage: stage.world.kill_process(RANK))
    assert switch.run.switches[0].reached == (4 if step in ("import", "after") else 0)
    assert switch.run.files().files == {}


@pytest.mark.parametrize("step", ["load", *slow("export", "start", "import", "after")])
def test_a_machine_that_goes_off_loses_no_response(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = Switch(tmp_path, monkeypatch)
    switch.play(step, lambda stage: stage.world.kill(VICTIM))
    assert switch.run.switches[0].reached == (4 if step in ("import", "after") else 0)


@pytest.mark.parametrize("step", ["export", *slow("start", "load", "import")])
def test_a_rank_that_hangs_is_lost_within_a_bound(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls end at their bound. Then the machine is lost; its responses go elsewhere."""
    switch = Switch(tmp_path, monkeypatch)

    def hang(stage: Stage) -> None:
        stage.world.condition(RANK).begin(FaultKind.FROZEN)
        process = stage.world.process(RANK)
        assert process is not None
        process.refresh()

    switch.play(step, hang)


@pytest.mark.parametrize("step", ["start", *slow("export", "load")])
def test_a_relay_that_dies_leaves_nothing_to_load(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = Switch(tmp_path, monkeypatch)
    switch.play(step, lambda stage: stage.world.kill_process(f"{VICTIM}/relay"))
    assert switch.run.switches[0].reached == 0


@pytest.mark.parametrize("step", ["export", *slow("start", "load", "import", "after")])
def test_a_coordinator_that_dies_is_followed_by_one_that_goes_on(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = Switch(tmp_path, monkeypatch)

    async def lives() -> Finished | None:
        first = asyncio.create_task(switch.run.stage.coordinate())
        await switch.at(step)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        return await switch.run.stage.coordinate()

    switch.check(virtual_time.run(lives()))
    assert switch.run.files().files == {}


@pytest.mark.parametrize("step", [*slow("export"), "load"])
def test_a_lost_trainer_changes_nothing_in_the_round(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = Switch(tmp_path, monkeypatch)
    switch.play(step, lambda stage: stage.world.kill_process("trainer"))
    assert switch.run.switches[0].reached == 4


@pytest.mark.parametrize("step", ["export", *slow("start", "load")])
def test_a_suspension_waits_for_the_switch_and_loses_no_token(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = Switch(tmp_path, monkeypatch)

    async def lives() -> Finished | None:
        first = asyncio.create_task(switch.run.stage.coordinate())
        await switch.at(step)
        control = switch.run.stage.control
        assert control is not None
        control.set_phase(TargetPhase.SUSPEND)
        await asyncio.sleep(20.0)
        control.set_phase(TargetPhase.RUN)
        return await first

    switch.check(virtual_time.run(lives()))
    assert switch.run.tokens.lost == {}


def _change_target(switch: Switch, step: str, change: Callable[[SimulatedControlPlane], None]) -> None:
    """Run to the end with a new target of the operator in the middle of this step."""

    def make(stage: Stage) -> None:
        assert stage.control is not None
        change(stage.control)

    switch.play(step, make)
    assert switch.run.tokens.lost == {}
    assert switch.run.switches[0].reached == 4, "the switch runs to its end first"


@pytest.mark.parametrize("step", ["start", *slow("export", "load", "import")])
def test_a_target_of_another_size_waits_for_the_boundary(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The operator of the simulator chooses sizes at each report.
    monkeypatch.setattr(SimulatedControlPlane, "_choose_layouts", lambda control, said: None)
    switch = Switch(tmp_path, monkeypatch, rounds=2)
    _change_target(switch, step, lambda control: control.set_tensor_parallel(2, 2))
    assert [report.tensor_parallel_size for report in switch.run.stage.closed] == [1, 2]


@pytest.mark.parametrize("step", ["export", *slow("start", "load", "import")])
def test_a_machine_leaves_after_its_switch(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = Switch(tmp_path, monkeypatch, rounds=2)
    _change_target(switch, step, lambda control: control._retarget(machines=("rollout-1",)))
    coordinator = switch.run.stage.coordinator
    assert coordinator is not None
    assert coordinator.loop._context.fleet.joined.keys() == {"rollout-1"}  # type: ignore[attr-defined]


def test_a_full_shared_memory_costs_a_prefill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = Switch(tmp_path, monkeypatch)

    async def fill(stage: Stage) -> None:
        await until(lambda: any(isinstance(one, Submitted) for one in switch.run.events), tick=0.01)
        stage.world.machine(VICTIM).weights.full += 1
        await until(lambda: bool(switch.run.switches), tick=0.01)
        stage.world.machine(VICTIM).weights.full -= 1

    switch.check(switch.run.stage.play(fill))
    assert switch.run.asked == []
    assert [(one.reached, one.exported_tokens) for one in switch.run.switches] == [(4, 0)]


def test_the_seconds_of_a_refused_switch_are_those_of_its_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines may fail late. Their responses wait until the machine is back in its size."""
    switch_layout = SimulatedReplica.switch_layout

    async def refuse_late(self: SimulatedReplica, term: int, tensor_parallel: int) -> KeptEngines:
        if tensor_parallel == 4 and machine_of(self.name) == VICTIM:
            await asyncio.sleep(20.0)
            raise Refused("out of memory")
        return await switch_layout(self, term, tensor_parallel)

    monkeypatch.setattr(SimulatedReplica, "switch_layout", refuse_late)
    run = Run(tmp_path, 4, state=State.RECOMPUTE)
    report = run.play()
    (switch,) = run.switches
    assert switch.reached == 1
    assert 20.0 <= switch.seconds["failed"] < 21.0
    assert report.seconds is not None
    assert report.seconds > 20.0


def test_a_machine_that_was_only_silent_keeps_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = Switch(tmp_path, monkeypatch)

    async def cut(stage: Stage) -> None:
        await switch.at("after")
        condition = stage.world.machine(VICTIM).condition
        condition.begin(FaultKind.CUT)
        await until(lambda: VICTIM not in stage.coordinator._fleet.machines, tick=0.01)
        condition.end(FaultKind.CUT)

    switch.check(switch.run.stage.play(cut))
    assert {event.tensor_parallel for event in switch.run.events if isinstance(event, LaidOut)} == {1, 4}
    rows = sqlite3.connect(switch.run.stage.path).execute("SELECT machine, tensor_parallel FROM layouts").fetchall()
    assert rows == [(VICTIM, 4)]
