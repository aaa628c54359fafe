"""The store goes with the coordinator's pod, as it does on emptyDir: the job goes on from the trainer's checkpoint, and
no number of the lost history is used again."""

import asyncio

import pytest
from coordinator_kit import Stage, job
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import FinishedOutcome
from rljob_runtime.scheduling.versions import UNREPORTED, Versions
from rljob_runtime.simulation import clock
from rljob_runtime.simulation.events import Published
from rljob_runtime.simulation.world import TRAINER


class Crash(BaseException):
    """As SIGKILL."""


def crash_after(stage: Stage, rounds: int):
    """At the first moment around a store call at which so many rounds are closed."""

    def at(moment: str) -> None:
        if len(stage.closed) == rounds:
            raise Crash

    return at


def lose_everything_but_memory_and_checkpoints(stage: Stage) -> None:
    """Ray's tables go with the store, so every actor ends; the machines' shared memory stays."""
    for name in (TRAINER, "rollout-0", "rollout-1"):
        for process in list(stage.world.machine(name).processes):
            stage.world.kill_process(process)
    for file in stage.path.parent.glob("state.db*"):
        file.unlink()


@pytest.mark.parametrize("machines_late", [False, True], ids=["machines at once", "machines late"])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_lost_store_costs_no_more_than_the_checkpoint_says(tmp_path, rounds, machines_late):
    stage = Stage(tmp_path / "state.db", job=job(rounds=5, every_rounds=2))
    published: list[Published] = []
    stage.watchers = [lambda event: published.append(event) if isinstance(event, Published) else None]

    async def lives() -> int:
        stage.around = crash_after(stage, rounds)
        with pytest.raises(Crash):
            await stage.coordinate()
        stage.around = lambda moment: None
        lose_everything_but_memory_and_checkpoints(stage)
        for index in range(2 if machines_late else 0):
            asyncio.get_running_loop().call_later(30.0, stage.world.hold_back(f"rollout-{index}").set)
        former = len(published)
        async with asyncio.timeout(600):
            assert (await stage.coordinate()).outcome is FinishedOutcome.COMPLETE
        return former

    former = clock.run(lives())
    numbers = [event.version for event in published]
    assert min(numbers[former:]) > max(numbers[:former], default=0)
    checkpoint = rounds // 2 * 2
    assert stage.rounds[rounds:] == list(range(checkpoint + 1, 6))


@given(reported=st.integers(0, 9), since=st.integers(0, UNREPORTED), seen=st.integers(0, 9))
def test_a_history_that_was_lost_begins_above_what_was_reported(reported, since, seen):
    assert Versions().reported(reported).seen(seen).next_version() > max(reported + since, seen)
    kept = Versions().publish(1, 0)
    assert kept.reported(reported) == kept, "a history that is there knows better"
