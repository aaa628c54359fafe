"""A silent machine: out of the chain immediately, back when it answers, gone when a neighbour says so too."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rljob_api.status import FinishedOutcome
from rljob_runtime.simulator.core.events import ProcessStarted
from rljob_runtime.simulator.core.network import FaultKind
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job, until

NAMES = ("rollout-0", "rollout-1", "rollout-2")


@pytest.fixture
def stage(tmp_path):
    """Three machines and updates that take long enough for everything to be seen at rest."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=4, machines=3), machines=3)
    stage.world.costs.step = 20.0
    return stage


def witnesses(stage: Stage) -> dict[str, set[str]]:
    """All who ever stood up against each machine."""
    said: dict[str, set[str]] = {}
    for report in stage.control.reports:
        for suspect in report.suspects:
            said.setdefault(suspect.machine, set()).update(suspect.witnesses)
    return said


def starts(stage: Stage) -> list[str]:
    """The processes started, by name, from now on."""
    names: list[str] = []
    stage.watchers.append(lambda event: names.append(event.process) if isinstance(event, ProcessStarted) else None)
    return names


async def at_rest(stage: Stage) -> None:
    """All machines are in the chain, and nothing is on its way."""
    await until(lambda: bool(stage.control and stage.control.reports and stage.control.last.relay))
    await until(lambda: set(stage.control.last.relay.chain) == set(NAMES) and not stage.control.last.suspects)


def power_off(stage: Stage, name: str) -> None:
    stage.world.power_off(stage.control.incarnation(name))


def unplug(stage: Stage, name: str) -> None:
    stage.world.machine(name).condition.begin(FaultKind.CUT)


def plug_in(stage: Stage, name: str) -> None:
    stage.world.machine(name).condition.end(FaultKind.CUT)


@pytest.mark.parametrize("moment", [0.0, *slow(0.13, 0.26, 0.38, 0.49)])
@pytest.mark.parametrize(
    ("failure", "victim"),
    [
        *((power_off, name) for name in NAMES),
        (unplug, NAMES[1]),
        *(pytest.param(unplug, name, marks=pytest.mark.slow) for name in (NAMES[0], NAMES[2])),
    ],
)
def test_a_machine_that_is_gone_has_two_witnesses_within_seconds(stage, victim, failure, moment):
    seconds = {}

    async def fault(stage):
        clock = asyncio.get_running_loop().time
        await at_rest(stage)
        await asyncio.sleep(5.0 + moment)
        failure(stage, victim)
        since = clock()
        await until(lambda: victim not in stage.control.last.relay.chain, 0.01)
        seconds["closed"] = clock() - since
        await until(lambda: any(len(one.witnesses) > 1 for one in stage.control.last.suspects), 0.01)
        seconds["witnessed"] = clock() - since
        (suspect,) = stage.control.last.suspects
        assert (suspect.machine, suspect.reason) == (victim, "HeartbeatLost")
        assert suspect.witnesses[0] == "coordinator"
        assert set(suspect.witnesses) <= {"coordinator", *NAMES} - {victim}
        plug_in(stage, victim)
        stage.control.replace(victim)

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    assert seconds["closed"] < 1.5
    assert seconds["witnessed"] < 2.5
    assert set(witnesses(stage)) == {victim}


def test_the_neighbours_in_the_chain_as_it_was_are_asked(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, machines=5), machines=5)

    async def fault(stage):
        await until(lambda: bool(stage.closed))
        chain = stage.control.last.relay.chain
        assert len(chain) == 5
        power_off(stage, chain[3])
        await until(lambda: any(len(one.witnesses) > 2 for one in stage.control.last.suspects))
        assert witnesses(stage) == {chain[3]: {"coordinator", chain[2], chain[4]}}
        stage.control.replace(chain[3])

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE


def test_a_machine_lost_while_it_loads_weights_delays_no_other(stage):
    site = stage.world.site
    stage.world.site = replace(site, engine=replace(site.engine, load_seconds=2.0))

    async def fault(stage):
        await at_rest(stage)
        relays = stage.world.network.relays
        await until(lambda: all(relays[name].weights.whole == 2 for name in NAMES))
        power_off(stage, "rollout-1")
        clock = asyncio.get_running_loop().time
        since = clock()
        assert stage.coordinator._fleet.weights.changing
        await until(lambda: not stage.coordinator._fleet.weights.changing)
        assert clock() - since < 4.0
        stage.control.replace("rollout-1")

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE


@pytest.mark.parametrize("victim", [NAMES[0], *slow(*NAMES[1:])])
@pytest.mark.parametrize("what", ["relay", "replica-0", None])
def test_a_process_that_ended_on_a_machine_that_lives_has_one_witness(stage, victim, what):
    async def fault(stage):
        await at_rest(stage)
        stage.world.costs.step = 0.0
        gate = stage.world.hold_back(victim)
        if what is None:
            stage.world.kill(victim)
        else:
            stage.world.kill_process(f"{victim}/{what}")
        await until(lambda: bool(stage.control.last.suspects))
        await asyncio.sleep(10.0)
        gate.set()

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    assert witnesses(stage) == {victim: {"coordinator"}}


def test_a_machine_that_loses_power_after_its_processes_has_two_witnesses(stage):
    async def fault(stage):
        await at_rest(stage)
        gate = stage.world.hold_back("rollout-1")
        stage.world.kill("rollout-1")
        await until(lambda: bool(stage.control.last.suspects))
        await asyncio.sleep(3.0)
        assert witnesses(stage) == {"rollout-1": {"coordinator"}}
        power_off(stage, "rollout-1")
        await until(lambda: any(len(one.witnesses) > 1 for one in stage.control.last.suspects))
        gate.set()
        stage.control.replace("rollout-1")

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE


@pytest.mark.parametrize("seconds", [2.0, 8.0, 25.0])
def test_a_coordinator_that_is_cut_off_finds_no_second_witness(stage, seconds):
    started = starts(stage)

    async def fault(stage):
        await at_rest(stage)
        stage.world.life.condition.begin(FaultKind.CUT)
        started.clear()
        await asyncio.sleep(seconds)
        stage.world.life.condition.end(FaultKind.CUT)
        await at_rest(stage)
        if seconds < 10:
            assert not started, "who answers again is as it was"

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    assert witnesses(stage) == {name: {"coordinator"} for name in NAMES}


@pytest.mark.parametrize("trouble", [FaultKind.CUT, FaultKind.FROZEN])
def test_a_machine_that_answers_again_is_absolved_and_keeps_its_processes(stage, trouble):
    started = starts(stage)

    async def fault(stage):
        await at_rest(stage)
        machine = stage.world.machine("rollout-2")
        machine.condition.begin(trouble)
        machine.refresh()
        started.clear()
        await until(lambda: "rollout-2" not in stage.control.last.relay.chain)
        await asyncio.sleep(3.0)
        machine.condition.end(trouble)
        machine.refresh()
        await at_rest(stage)
        assert not started

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    second = {"rollout-0", "rollout-1"} if trouble is FaultKind.CUT else set()
    assert witnesses(stage) == {"rollout-2": {"coordinator"} | second}


def test_what_one_neighbour_reaches_is_not_gone(stage):
    """The way between the machine and the coordinator is broken, and the one to its other neighbour."""
    answers = stage.world.answers

    async def fault(stage):
        await at_rest(stage)
        unplug(stage, "rollout-1")
        stage.world.answers = lambda sender, receiver: sender == "rollout-2" or answers(sender, receiver)
        await until(lambda: bool(stage.control.last.suspects))
        await asyncio.sleep(5.0)
        plug_in(stage, "rollout-1")

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    assert "rollout-2" not in witnesses(stage)["rollout-1"]
    assert stage.control.last.suspects == ()


def test_a_lost_message_does_not_miss_the_next_heartbeat(stage):
    """Heartbeats do not wait for each other's answers."""

    async def fault(stage):
        await at_rest(stage)
        relay = stage.world.process("rollout-1/relay").peer
        status, asked = relay.status, []

        async def every_other(term):
            asked.append(term)
            if len(asked) % 2:
                await asyncio.sleep(4.0)
            return await status(term)

        relay.status = every_other
        await asyncio.sleep(10.0)
        assert len(asked) >= 19

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    assert not witnesses(stage)


def test_a_job_of_one_machine_has_no_neighbour_to_ask(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=2, machines=1), machines=1)

    async def fault(stage):
        await asyncio.sleep(1.0)
        power_off(stage, "rollout-0")
        await asyncio.sleep(20.0)
        stage.control.replace("rollout-0")

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    assert witnesses(stage) == {"rollout-0": {"coordinator"}}


AGAIN = [
    (20.0, 600.0, True),
    pytest.param(20.0, 10.0, False, marks=pytest.mark.slow),
    pytest.param(20.0, 0.0, False, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("apart", "within", "kept"), AGAIN)
def test_a_working_machine_that_failed_again_too_soon_is_replaced(stage, apart, within, kept):
    async def fault(stage):
        await at_rest(stage)
        stage.world.costs.step = 1.0
        stage.world.kill_process("rollout-1/replica-0")
        await until(lambda: bool(stage.control.last.suspects))
        await at_rest(stage)
        await asyncio.sleep(apart)
        stage.world.kill_process("rollout-1/replica-0")
        await until(lambda: bool(stage.control.last.suspects))
        (suspect,) = stage.control.last.suspects
        assert (suspect.reason == "KeepsFailing") is kept
        if kept:
            await asyncio.sleep(30.0)
            assert stage.control.last.suspects[0].reason == "KeepsFailing"
            stage.control.replace("rollout-1")
        await at_rest(stage)

    stage.job = job(rounds=60, machines=3)
    assert stage.play(fault, again_within=within).outcome is FinishedOutcome.COMPLETE
