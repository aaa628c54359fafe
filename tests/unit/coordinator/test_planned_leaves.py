"""Planned leaves: of the trainer's pod, of the coordinator's own, and of all at a suspension. No finished update is
lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome, TargetPhase
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import ProcessStarted, Trained
from rljob_runtime.simulator.core.network import FaultKind
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job, until

MODES = pytest.mark.parametrize("mode", list(Mode))
MOMENTS = pytest.mark.parametrize("seconds", [0.0, *slow(0.7, 3.0), 4.1, *slow(5.2, 7.5)])
ROUNDS = 5


def stage_of(tmp_path: Path, mode: Mode) -> Stage:
    """A job that writes no checkpoint by itself before its end."""
    return Stage(tmp_path / "state.db", job=job(rounds=ROUNDS, every_rounds=100, mode=mode))


async def trainer_leaves(stage: Stage, seconds: float) -> None:
    """As its pod does: it goes when it is empty."""
    await until(lambda: stage.control is not None)
    await asyncio.sleep(seconds)
    incarnation = stage.control.incarnation("trainer-0")
    stage.control.ask_to_go("trainer-0")
    await until(lambda: stage.world.process("trainer") is None)
    assert max(stage.world.disk.checkpoints) == len(stage.rounds), "the last finished update is saved"
    stage.world.power_off(incarnation)
    await asyncio.sleep(20.0)
    assert stage.world.process("trainer") is None, "nothing is started on a pod that goes"
    stage.control.replace("trainer-0")


def check_no_update_was_lost(stage: Stage) -> None:
    assert stage.rounds == list(range(1, ROUNDS + 1)), "none came again"
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == ROUNDS * 3 * 2
    versions = [report.weight_version for report in stage.control.reports if report.weight_version is not None]
    assert all(before <= after for before, after in pairwise(versions))


@MODES
@MOMENTS
def test_the_trainers_leave_costs_no_finished_update(tmp_path, mode, seconds):
    stage = stage_of(tmp_path, mode)
    assert stage.play(lambda stage: trainer_leaves(stage, seconds)).outcome is FinishedOutcome.COMPLETE
    check_no_update_was_lost(stage)


@MODES
@MOMENTS
def test_coordinator_and_trainer_leave_together_without_a_lost_update(tmp_path, mode, seconds):
    stage = stage_of(tmp_path, mode)

    async def program():
        running = asyncio.create_task(stage.coordinate())
        await asyncio.sleep(0.3 + seconds)
        stage.coordinator.stop()
        stage.coordinator.stop()  # a second SIGTERM
        assert await running is None
        assert max(stage.world.disk.checkpoints) == len(stage.rounds)
        assert stage.control.last.stage == "Draining"
        stage.world.kill("trainer")
        stage.control.replace("trainer-0")
        return await stage.coordinate()

    assert virtual_time.run(program()).outcome is FinishedOutcome.COMPLETE
    check_no_update_was_lost(stage)


@MODES
def test_the_next_coordinator_saves_what_a_leaving_trainer_holds(tmp_path, mode):
    """The former one was killed before it knew of the leave."""
    stage = stage_of(tmp_path, mode)

    async def program():
        running = asyncio.create_task(stage.coordinate())
        await until(lambda: stage.rounds == [1, 2])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert max(stage.world.disk.checkpoints) == 0
        leaving = asyncio.create_task(trainer_leaves(stage, 0.0))
        finished = await stage.coordinate()
        await leaving
        return finished

    assert virtual_time.run(program()).outcome is FinishedOutcome.COMPLETE
    check_no_update_was_lost(stage)


@MODES
def test_a_coordinator_whose_trainer_died_leaves_all_the_same(tmp_path, mode):
    stage = stage_of(tmp_path, mode)

    async def leave(stage):
        await until(lambda: stage.rounds == [1])
        stage.world.kill("trainer")
        stage.coordinator.stop()

    assert stage.play(leave) is None
    assert max(stage.world.disk.checkpoints) == 0


@MODES
def test_a_trainer_that_cannot_save_says_so_and_goes(tmp_path, mode):
    """The disk is full: to keep the pod would not empty it."""
    stage = stage_of(tmp_path, mode)

    async def leave(stage):
        await until(lambda: stage.rounds == [1])
        stage.world.disk.full = 1
        stage.control.ask_to_go("trainer-0")
        await until(lambda: stage.world.process("trainer") is None)
        assert "CheckpointFailed" in [problem.reason for problem in stage.control.last.warnings]
        stage.world.disk.full = 0
        stage.control.replace("trainer-0")

    assert stage.play(leave).outcome is FinishedOutcome.COMPLETE
    assert stage.rounds[0] == 1
    assert 1 in stage.rounds[1:], "the update that was not saved is made again"


# --- a suspension that reaches a coordinator which has just been started ----------------------------------------------


async def killed_after(stage: Stage, event: type, number: int) -> None:
    """A coordinator's life up to the moment of this event, the `number`-th of its kind."""
    reached, seen = asyncio.Event(), []

    def watch(one: object) -> None:
        if isinstance(one, event):
            seen.append(one)
            if len(seen) == number:
                reached.set()

    stage.watchers.append(watch)
    running = asyncio.create_task(stage.coordinate())
    await reached.wait()
    stage.watchers.remove(watch)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def suspended(stage: Stage) -> None:
    """The next coordinator's life, until it says that everything is handed over."""
    reports = len(stage.control.reports)
    running = asyncio.create_task(stage.coordinate())
    await until(lambda: any(report.stage == "Suspended" for report in stage.control.reports[reports:]))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def resume(stage: Stage) -> None:
    """As the operator does: all pods have gone, others come."""
    for incarnation in stage.control.stop():
        stage.world.power_off(incarnation)
    stage.control.resume()


@MODES
@pytest.mark.parametrize("updates", [1, 2, ROUNDS])
def test_a_suspension_saves_an_update_whose_answer_was_lost(tmp_path, mode, updates):
    """It was killed between the update and its entry in the store: the trainer is one step ahead."""
    stage = stage_of(tmp_path, mode)

    async def program():
        await killed_after(stage, Trained, updates)
        assert stage.rounds == list(range(1, updates))
        stage.control.set_phase(TargetPhase.SUSPEND)
        await suspended(stage)
        assert max(stage.world.disk.checkpoints) == updates
        resume(stage)
        return await stage.coordinate()

    assert virtual_time.run(program()).outcome is FinishedOutcome.COMPLETE
    check_no_update_was_lost(stage)


@MODES
@pytest.mark.parametrize("seconds", [0.0, *slow(0.01, 0.1, 0.5), 1.0, *slow(2.0, 3.5)])
def test_a_suspension_during_a_start_saves_what_the_trainer_holds(tmp_path, mode, seconds):
    stage = stage_of(tmp_path, mode)

    async def program():
        await killed_after(stage, Trained, 3)
        asyncio.get_running_loop().call_later(seconds, stage.control.set_phase, TargetPhase.SUSPEND)
        await suspended(stage)
        assert max(stage.world.disk.checkpoints) == len(stage.rounds) >= 3
        resume(stage)
        return await stage.coordinate()

    assert virtual_time.run(program()).outcome is FinishedOutcome.COMPLETE
    check_no_update_was_lost(stage)


@MODES
def test_a_suspension_starts_no_trainer_to_ask_it(tmp_path, mode):
    """The trainer died with the coordinator: what it held is gone, and what is saved is saved."""
    stage = stage_of(tmp_path, mode)
    started = []

    async def program():
        await killed_after(stage, Trained, 2)
        stage.world.kill("trainer")
        stage.control.set_phase(TargetPhase.SUSPEND)
        stage.watchers.append(lambda event: started.append(event) if isinstance(event, ProcessStarted) else None)
        async with asyncio.timeout(2.0):
            await suspended(stage)

    virtual_time.run(program())
    assert started == []


@MODES
def test_a_suspension_waits_for_no_trainer_that_loads(tmp_path, mode):
    """It holds nothing but what is in the checkpoint that it loads."""
    stage = stage_of(tmp_path, mode)
    stage.world.costs = replace(stage.world.costs, start=100.0)

    async def suspend(stage: Stage) -> None:
        await until(lambda: stage.world.process("trainer") is not None)
        stage.control.set_phase(TargetPhase.SUSPEND)
        async with asyncio.timeout(3.0):
            await until(lambda: bool(stage.control.reports) and stage.control.last.stage == "Suspended")
        stage.coordinator.stop()

    assert stage.play(suspend) is None


def test_a_trainer_that_dies_while_it_is_asked_is_waited_for_no_longer(tmp_path):
    """It hangs, and then it is gone: nothing is to be saved, and no other one is made to ask that."""
    stage = stage_of(tmp_path, Mode.ON_POLICY)

    async def program():
        await killed_after(stage, Trained, 2)
        stage.world.condition("trainer").begin(FaultKind.FROZEN)
        stage.world.process("trainer").refresh()
        stage.control.set_phase(TargetPhase.SUSPEND)
        running = asyncio.create_task(suspended(stage))
        await asyncio.sleep(1.0)
        assert not running.done()
        stage.world.kill("trainer")
        await running

    virtual_time.run(program())
