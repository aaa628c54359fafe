"""Replicas that are lost and back, and weights that are asked for, while the coordinator waits for something else."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome, Member, Role, RuntimeStatus
from rljob_runtime.coordinator.core.errors import TrainerLost
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.protocols import PeerGone
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Event, Loaded, Published, Submitted
from rljob_runtime.simulator.core.network import FaultKind
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane
from tests.support.simulated_job import Stage, job, until


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path / "state.db")


def check_trained_once(stage: Stage) -> None:
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == 3 * 3 * 2


def once(stage: Stage, when: Callable[[Event], bool], act: Callable[[], None]) -> list[bool]:
    """Do this right after the first such event. The list is filled when it was."""
    done: list[bool] = []

    def watch(event: Event) -> None:
        if not done and when(event):
            done.append(True)
            asyncio.get_running_loop().call_soon(act)

    stage.watchers.append(watch)
    return done


def freeze(stage: Stage, process: str, seconds: float) -> None:
    condition = stage.world.condition(process)

    def set_frozen(change: Callable[[FaultKind], None]) -> None:
        change(FaultKind.FROZEN)
        if (found := stage.world.process(process)) is not None:
            found.refresh()

    set_frozen(condition.begin)
    asyncio.get_running_loop().call_later(seconds, set_frozen, condition.end)


def test_a_replica_lost_and_back_while_another_takes_its_time_is_noticed(stage):
    """The second to receive its requests answers after 4 s. The first one dies meanwhile, and joins again before
    anybody looks."""
    failed: list[str] = []

    def first(event: Event) -> bool:
        if isinstance(event, Submitted):
            failed.append(event.replica)
        return bool(failed)

    def trouble() -> None:
        slow, dies = ("rollout-1", "rollout-0") if failed[0].startswith("rollout-0") else ("rollout-0", "rollout-1")
        freeze(stage, f"{slow}/replica-0", 4.0)
        stage.world.kill(dies)

    happened = once(stage, first, trouble)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    assert happened
    check_trained_once(stage)


def hangs(stage: Stage, other: str) -> None:
    """Its process stands still; its relay, and all else of its machine, lives."""
    freeze(stage, f"{other}/replica-0", 200.0)


def is_cut_off(stage: Stage, other: str) -> None:
    stage.world.machine(other).condition.begin(FaultKind.CUT)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("failure", "poll", "within"), [(hangs, 5.0, 10.0), (is_cut_off, 100.0, 5.0)])
def test_a_command_to_a_lost_replica_does_not_wait(tmp_path, mode, failure, poll, within):
    """It does not answer as it is given requests, which may take 100 s. Its poll, or its relay's heartbeats, show it
    sooner, and its requests are given to the other one."""
    stage = Stage(tmp_path / "state.db", job=job(mode=mode))
    bounds = replace(stage.world.site.bounds, command=100.0, poll=poll)
    stage.world.site = replace(stage.world.site, bounds=bounds)
    given: list[tuple[float, str]] = []

    def note(event: Event) -> None:
        if isinstance(event, Submitted):
            given.append((asyncio.get_running_loop().time(), event.replica))
            if len(given) == 1:
                other = "rollout-1" if event.replica.startswith("rollout-0") else "rollout-0"
                asyncio.get_running_loop().call_soon(failure, stage, other)

    stage.watchers.append(note)

    async def repaired(stage: Stage) -> None:
        await until(lambda: bool(given))
        await asyncio.sleep(within)
        first, here = given[0]
        assert any(when > first + 1.0 and name == here for when, name in given)
        stage.control.replace("rollout-0" if here.startswith("rollout-1") else "rollout-1")

    assert stage.play(repaired).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)


def test_a_replica_that_comes_while_another_is_emptied_has_its_turn_first(tmp_path):
    """The first machine dies, the second one takes 4 s to be emptied, the third comes meanwhile. What is launched on
    the third before it was emptied would be aborted."""
    stage = Stage(tmp_path / "state.db", machines=3)
    second, third = stage.world.hold_back("rollout-1"), stage.world.hold_back("rollout-2")

    def first_dies() -> None:
        stage.world.kill("rollout-0")
        stage.world.hold_back("rollout-0")
        second.set()

    def second_is_slow() -> None:
        replica = stage.world.process("rollout-1/replica-0").peer
        abort = replica.abort

        async def slow(*arguments) -> None:
            third.set()
            await asyncio.sleep(4.0)
            await abort(*arguments)

        replica.abort = slow

    once(stage, lambda event: isinstance(event, Submitted), first_dies)
    happened = once(
        stage, lambda event: isinstance(event, Loaded) and event.replica.startswith("rollout-1"), second_is_slow
    )
    assert stage.play(join_patience=0.0).outcome is FinishedOutcome.COMPLETE
    assert happened
    check_trained_once(stage)


def test_weights_requested_during_an_update_get_a_new_version(stage):
    """The trainer was restored and has published once more what it holds. All relays are lost while it computes an
    update: who comes back meanwhile must not be fed the new weights under the number of the old ones."""
    stage.world.costs.step = 20.0
    versions: list[tuple[int, int]] = []

    def watch(event: Event) -> None:
        if isinstance(event, Published):
            versions.append((event.version, event.step))

    async def faults(stage):
        await until(lambda: stage.control is not None and versions, tick=0.01)
        stage.control.replace("trainer-0")
        await until(lambda: stage.control.last.stage == "Training")
        stage.world.kill("rollout-0")
        stage.world.kill("rollout-1")

    stage.watchers.append(watch)
    assert stage.play(faults).outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)
    assert versions == [(1, 0), (1, 0), (2, 1), (3, 2), (4, 3)]


def test_a_round_without_weights_gets_them_from_a_restarted_trainer(stage):
    """The trainer dies while others generate, which is not noticed; then the last machines die. Who comes back can get
    the round's weights only from a restarted trainer."""

    def trouble() -> None:
        for name in ("trainer", "rollout-0", "rollout-1"):
            stage.world.kill(name)

    assert once(stage, lambda event: isinstance(event, Submitted), trouble) == []
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    check_trained_once(stage)
    assert len(stage.control.reports) < 100


def test_a_call_that_fails_late_does_not_end_the_next_trainer(stage):
    """Two calls wait for a trainer when it dies; the second to hear of it finds another one started."""

    async def program():
        started = []

        class Slow:
            def __init__(self, fails_after: float) -> None:
                self.fails_after = fails_after

            async def start(self, term):
                return "state"

            async def export(self, term):
                await asyncio.sleep(self.fails_after)
                raise PeerGone("dead")

        class Backend:
            async def trainer(self, term, members):
                started.append(Slow(fails_after=1.0))
                return started[-1]

            async def has_trainer(self, members):
                return True

            async def release(self, member):
                pass

        settings = Settings.of(stage.job)
        reporter = Reporter(SimulatedControlPlane(stage.job, 1), RuntimeStatus(), settings.back_off)
        client = TrainerClient(Backend(), 1, settings, reporter)
        client.set_members([Member(machine="trainer-0", incarnation=1, ip="10.0.0.1", role=Role.TRAINER)])
        await client.start()
        late = asyncio.ensure_future(client.call(lambda trainer: trainer.export(1)))
        await asyncio.sleep(0.1)
        started[0].fails_after = 0.0
        with pytest.raises(TrainerLost):
            await client.call(lambda trainer: trainer.export(1))
        await client.start()
        with pytest.raises(TrainerLost):
            await late
        assert await client.call(lambda trainer: trainer.start(1)) == "state"
        assert len(started) == 2

    virtual_time.run(program())
