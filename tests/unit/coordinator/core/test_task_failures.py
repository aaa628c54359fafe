"""Tasks that are not awaited: their errors are raised, so that nothing waits for them without end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.core.async_utils import BackgroundTasks, Broken, StageTasks
from rljob_runtime.coordinator.fleet.broadcast import Broadcast
from rljob_runtime.coordinator.fleet.machine import RolloutMachine
from rljob_runtime.coordinator.generation.scoring import RewardRequests
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.peers.engines.replica import SimulatedReplica
from rljob_runtime.simulator.peers.inputs import SimulatedPrompts
from tests.support.simulated_job import Stage, job

MODES = [Mode.ON_POLICY, Mode.ASYNCHRONOUS]


class Bug(Exception):
    """An unexpected error."""


def stumble(*args: Any, **more: Any) -> Any:
    raise Bug("of ours")


async def stumble_later(*args: Any, **more: Any) -> Any:
    raise Bug("of ours")


class Undecodable(SimulatedPrompts):
    """Its tokenizer has no text for some ids that the model may sample: each eleventh response has one."""

    refused = 0

    def decode(self, token_ids: Sequence[int]) -> Any:
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked % 11 == 0:
            self.refused += 1
            raise IndexError("piece id is out of range.")
        return super().decode(token_ids)


@pytest.mark.parametrize("mode", MODES)
def test_a_response_that_cannot_be_decoded_is_an_aborted_sample(tmp_path, caplog, mode):
    prompts = Undecodable()
    stage = Stage(tmp_path / "state.db", job=job(rounds=4, prompts=3, responses=3, mode=mode), prompts=prompts)
    assert stage.play(reward_failures=5).outcome is FinishedOutcome.COMPLETE
    assert prompts.refused > 0
    assert sum(report.aborted_samples for report in stage.closed) > 0
    assert "the sample is aborted: its tokens cannot be decoded: IndexError('piece id is out of range.')" in caplog.text


@pytest.mark.parametrize("mode", MODES)
def test_a_poller_that_ends_by_a_bug_ends_the_coordinator(tmp_path, mode, monkeypatch):
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, mode=mode))
    monkeypatch.setattr(SimulatedReplica, "poll", stumble_later)
    with pytest.raises(Bug):
        stage.play()


@pytest.mark.parametrize("mode", MODES)
def test_a_scorer_that_ends_by_a_bug_ends_the_coordinator(tmp_path, mode, monkeypatch):
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, mode=mode))
    monkeypatch.setattr(RewardRequests, "_score", stumble_later)
    with pytest.raises(Bug):
        stage.play()


def test_a_load_that_ends_by_a_bug_ends_the_coordinator(tmp_path, monkeypatch):
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, mode=Mode.ASYNCHRONOUS))
    monkeypatch.setattr(SimulatedReplica, "load", stumble_later)
    with pytest.raises(Bug):
        stage.play()


def test_a_delivery_that_ends_by_a_bug_ends_the_coordinator(tmp_path, monkeypatch):
    """It goes on aside while the update waits for it."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, mode=Mode.ASYNCHRONOUS))
    monkeypatch.setattr(Broadcast, "push_to_relays", stumble_later)
    with pytest.raises(Bug):
        stage.play()


def test_a_failure_of_a_background_call_to_a_machine_is_raised(tmp_path, monkeypatch):
    stage = Stage(tmp_path / "state.db", job=job(rounds=3))
    monkeypatch.setattr(RolloutMachine, "release_worker", stumble_later)
    with pytest.raises(Bug):
        stage.play()


def test_stage_tasks_tell_of_errors_alone():
    async def program() -> list[Broken]:
        told: list[Broken] = []
        tasks = StageTasks(told.append)
        tasks.start(asyncio.sleep(0.1), "well")
        tasks.start(stumble_later(), "bug")
        cancelled = tasks.start(asyncio.sleep(100), "cancelled")
        await asyncio.sleep(1)
        cancelled.cancel()
        tasks.start(asyncio.sleep(100), "ended by close")
        await tasks.close()
        await asyncio.sleep(1)
        return told

    (broken,) = virtual_time.run(program())
    assert isinstance(broken.error, Bug)


def test_a_failure_of_a_background_task_is_raised_on_request():
    async def program() -> None:
        aside = BackgroundTasks()
        aside.start(asyncio.sleep(0.1))
        await asyncio.sleep(1)
        aside.check()
        aside.start(stumble_later())
        await asyncio.sleep(1)
        with pytest.raises(Bug):
            aside.check()
        await aside.close()

    virtual_time.run(program())


def test_a_stream_receives_a_failure_before_another_task_takes_its_place(tmp_path, monkeypatch):
    """Groups come one after the other; a call to the trainer has ended by a bug in between."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=2, prompts=4, responses=2, stream=True))
    monkeypatch.setattr("rljob_runtime.coordinator.stream_training.stream.Streaming._contribute", stumble)
    with pytest.raises(Bug):
        stage.play()
