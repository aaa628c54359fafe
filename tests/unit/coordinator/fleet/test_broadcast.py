"""Machines that come and go while a version is on its way: from the trainer to the master, and along the chain."""

import asyncio
import random

import pytest

from rljob_api.status import FinishedOutcome
from rljob_runtime.scheduling.weight_versions import Versions
from rljob_runtime.simulator.core.network import FaultKind
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job, until

NAMES = ("rollout-0", "rollout-1", "rollout-2")
FIRST = (NAMES[0], *slow(*NAMES[1:]))
"""The machine whose failure changes most, and others in `make test-all`."""


@pytest.fixture
def stage(tmp_path):
    """Three machines, and weights that take their time: two seconds to the chain, two for each hop."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=6, machines=3), machines=3)
    stage.world.costs.publish = stage.world.network.hop_seconds = 2.0
    return stage


def shipping(stage: Stage, version: int) -> bool:
    """Whether the trainer is at it."""
    trainer = stage.world.process("trainer")
    return trainer is not None and trainer.peer.publishing == version


def broadcasting(stage: Stage, version: int) -> bool:
    """Whether some relays hold the version and some do not."""
    holds = [relay.weights.whole == version for relay in stage.world.network.relays.values()]
    return any(holds) and not all(holds)


def check_trained_once(stage: Stage) -> None:
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == 6 * 3 * 2


def suspicions(stage: Stage) -> set[tuple[str, str]]:
    return {(suspect.machine, suspect.reason) for report in stage.control.reports for suspect in report.suspects}


def test_what_a_version_takes_to_all_relays_is_measured_without_its_copy(stage):
    """The sums of a loaned machine take the same links."""
    stage.world.costs.publish = 5.0
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    assert stage.coordinator._fleet.weights.broadcast_seconds == pytest.approx(6.0, abs=0.3)


def test_a_version_that_is_shipped_again_takes_no_time(stage):
    """Two machines come late, and are fed while the trainer copies its weights once more."""
    stage.world.costs.publish = 8.0
    seen = []

    async def look(stage):
        await until(lambda: stage.coordinator is not None and stage.coordinator.loop.generation is not None)
        seen.append(stage.coordinator._fleet.weights.broadcast_seconds)

    assert stage.play(look).outcome is FinishedOutcome.COMPLETE
    assert seen == [pytest.approx(2.0, abs=0.3)]


@pytest.mark.parametrize("moment", [shipping, broadcasting])
@pytest.mark.parametrize("newcomer", FIRST)
def test_a_machine_that_joins_in_mid_broadcast_is_fed_afterwards(stage, newcomer, moment):
    gate = stage.world.hold_back(newcomer)
    joined = []

    async def arrive(stage):
        await until(lambda: moment(stage, 3))
        gate.set()
        await until(lambda: set(stage.control.last.relay.chain) == set(NAMES))
        joined.append(stage.control.last.relay.weight_version)
        assert stage.world.network.relays[newcomer].weights.whole >= 3

    assert stage.play(arrive).outcome is FinishedOutcome.COMPLETE
    assert joined == [3]
    check_trained_once(stage)
    assert not suspicions(stage)


@pytest.mark.parametrize("moment", [shipping, broadcasting])
@pytest.mark.parametrize("victim", FIRST)
def test_a_machine_lost_in_mid_broadcast_comes_back(stage, victim, moment):
    async def fault(stage):
        await until(lambda: moment(stage, 3))
        stage.world.kill(victim)
        await until(lambda: stage.world.process(f"{victim}/relay") is not None)
        await until(lambda: not stage.control.last.suspects and set(stage.control.last.relay.chain) == set(NAMES))

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)
    assert suspicions(stage) == {(victim, "ProcessExited")}


def test_a_version_dropped_during_its_broadcast_is_loaded_by_no_machine(stage):
    """A newcomer is being fed when the update begins, and who feeds it dies. The newcomer is not lost over it."""
    newcomer, _ = (stage.world.hold_back(name) for name in NAMES[1:])
    stage.world.network.hop_seconds = 8.0
    stage.world.costs.step = 30.0

    async def fault(stage):
        await until(lambda: stage.coordinator is not None and stage.coordinator.loop.generation is not None)
        newcomer.set()
        await until(lambda: stage.coordinator.loop.generation is None)
        assert broadcasting(stage, 1)
        stage.world.kill("rollout-0")

    assert stage.play(fault, join_patience=0.0).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)
    assert suspicions(stage) == {("rollout-0", "ProcessExited")}


@pytest.mark.parametrize("victim", FIRST)
def test_a_machine_that_returns_is_not_awaited_in_the_old_chain(stage, victim):
    stage.world.costs.publish = 8.0
    times = {}

    async def fault(stage):
        clock = asyncio.get_running_loop().time
        await until(lambda: shipping(stage, 3))
        stage.world.kill(victim)
        await until(lambda: stage.world.process(f"{victim}/relay") is not None)
        assert shipping(stage, 3), "back too late to show anything"
        await until(lambda: not shipping(stage, 3))
        times["shipped"] = clock()
        await until(lambda: all(r.weights.whole == 3 for r in stage.world.network.relays.values()))
        times["whole"] = clock()

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)
    assert suspicions(stage) == {(victim, "ProcessExited")}
    assert len(times) == 2


@pytest.mark.parametrize("moment", [shipping, broadcasting])
@pytest.mark.parametrize("victim", ["rollout-0", *slow("rollout-1")])
def test_one_comes_while_one_goes(stage, victim, moment):
    gate = stage.world.hold_back("rollout-2")

    async def both(stage):
        await until(lambda: moment(stage, 3))
        gate.set()
        stage.world.kill(victim)
        await until(lambda: not stage.control.last.suspects and set(stage.control.last.relay.chain) == set(NAMES))

    assert stage.play(both).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)
    assert suspicions(stage) == {(victim, "ProcessExited")}


@pytest.mark.parametrize("moment", [shipping, broadcasting])
@pytest.mark.parametrize("after", [*slow(0.8), 1.0, *slow(1.1)])
def test_all_machines_fail_while_the_chain_closes_over_the_first(stage, after, moment):
    """The next change of the chain finds no machine for it."""

    async def fault(stage):
        await until(lambda: moment(stage, 3))
        conditions = [stage.world.machine(name).condition for name in NAMES]
        conditions[0].begin(FaultKind.CUT)
        await asyncio.sleep(after)
        for condition in conditions[1:]:
            condition.begin(FaultKind.CUT)
        await until(lambda: not stage.coordinator._fleet.machines)
        for condition in conditions:
            condition.end(FaultKind.CUT)

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)


@pytest.mark.parametrize("every_rounds", [*slow(1), 2, *slow(3, 4)])
@pytest.mark.parametrize("moment", [shipping, broadcasting])
def test_the_trainer_returns_with_weights_older_than_the_relays(stage, moment, every_rounds):
    """Relays only go upwards: the checkpoint's weights need a number above that of the history that was lost."""
    stage.job = job(rounds=6, machines=3, every_rounds=every_rounds)

    async def fault(stage):
        await until(lambda: moment(stage, 4))
        stage.world.kill("trainer")

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)
    assert not suspicions(stage)


@pytest.mark.parametrize("seed", [*range(2), *slow(*range(2, 24))])
def test_seeded_faults_among_slow_weights(stage, seed):
    """Machines and the trainer die at random times, and machines take random times to come back."""
    rng = random.Random(seed)
    stage.world.costs.publish = rng.choice([0.5, 2.0, 6.0])
    stage.world.network.hop_seconds = rng.choice([0.2, 1.0, 3.0])

    async def faults(stage):
        for _ in range(12):
            await asyncio.sleep(rng.uniform(0.2, 8.0))
            victim = rng.choice([*NAMES, *NAMES, "trainer"])
            if victim in NAMES:
                gate = stage.world.hold_back(victim)
                asyncio.get_running_loop().call_later(rng.uniform(0.0, 12.0), gate.set)
            stage.world.kill(victim)

    assert stage.play(faults).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)


def test_only_the_newest_number_can_be_given_to_relays_again():
    versions = Versions().publish(1, 0).publish(2, 1).publish(3, 2)
    assert [versions.current(step) for step in range(4)] == [None, None, 3, None]
    assert versions.with_observed(5).current(2) is None
    assert versions.rewind(1).current(1) is None
    assert versions.rewind(1).publish(4, 1).current(1) == 4
