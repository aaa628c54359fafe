"""The coordinator killed around any call of its store, and started again: runs end as if nothing had been."""

import itertools
import random

import pytest

from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from tests.support.crashes import play_through
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job


def check_whole(stage: Stage, responses: int) -> None:
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == responses
    store = Store(stage.path, "uid-1")
    assert store.trajectories.outcomes() == {"trained": responses}
    assert store.rounds.under_way() is None
    store.close()


@pytest.mark.parametrize("moment", range(1, 60, 2))
def test_killed_around_any_store_call(tmp_path, moment):
    stage = Stage(tmp_path / "state.db", job=job(rounds=2, prompts=2))
    play_through(stage, [moment])
    check_whole(stage, 8)
    assert stage.control.last.finished is not None


@pytest.mark.parametrize("seed", range(8))
def test_killed_again_and_again(tmp_path, seed):
    rng = random.Random(seed)
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, prompts=2), seed=seed)
    lives = play_through(stage, [rng.randrange(3, 25) for _ in range(6)])
    check_whole(stage, 12)
    terms = [report.term for report in stage.control.reports]
    assert terms == sorted(terms)
    assert stage.control.last.totals.coordinator_restarts == lives - 1


# --- tail batching: the queue, the race and what it filters survive too ---

TAIL = {"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}


def racing(tmp_path, seed: int = 0) -> Stage:
    """Four rounds (Short, Short, Long, Long) of 2 × 2 out of 3 × 3, with a reward that fails once."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=4, prompts=2, tail=TAIL), seed=seed)
    stage.fails = {"0.1": 1}
    return stage


def check_raced(stage: Stage) -> None:
    ids = [TrajectoryKey.parse(text) for text in stage.trained_ids()]
    assert len(ids) == len(set(ids)) == 16
    assert {key.prompt for key in ids} == {PromptKey(0, index) for index in range(8)}
    assert all(sum(key.prompt == other.prompt for other in ids) == 2 for key in ids)
    store = Store(stage.path, "uid-1")
    assert store.trajectories.outcomes()["trained"] == 16
    assert (store.boundaries.newest().queue, store.rounds.under_way()) == ((), None)
    store.close()
    assert stage.control.last.deferred_prompts == 0
    # Losers that a dead coordinator left running are aborted; else their machine would refuse the next weights.
    assert not any(report.suspects for report in stage.control.reports)


@pytest.mark.parametrize("offset", slow(0, 1, 2, 3))
def test_killed_before_and_after_every_store_call_of_a_race(tmp_path, offset):
    """Every fourth moment from `offset` on, until the run has none left."""
    for moment in itertools.count(offset + 1, 4):
        stage = racing(tmp_path / str(moment))
        lives = play_through(stage, [moment])
        check_raced(stage)
        if lives == 1:
            break
    assert moment > 100


@pytest.mark.parametrize("seed", range(8))
def test_killed_again_and_again_in_a_race(tmp_path, seed):
    rng = random.Random(seed)
    stage = racing(tmp_path, seed)
    play_through(stage, [rng.randrange(3, 30) for _ in range(8)])
    check_raced(stage)


@pytest.mark.parametrize("moment", range(2, 60, 6))
def test_killed_while_groups_of_equal_rewards_are_replaced(tmp_path, moment):
    dynamic = {"enabled": True, "maxPromptFactor": 100}
    stage = Stage(tmp_path / "state.db", job=job(rounds=2, prompts=2, tail=TAIL, dynamic=dynamic), reward_levels=2)
    play_through(stage, [moment])
    ids = [TrajectoryKey.parse(text) for text in stage.trained_ids()]
    assert len(ids) == len(set(ids)) == 8
    assert {report.reward for report in stage.closed} == {0.25}
    store = Store(stage.path, "uid-1")
    assert (store.trajectories.outcomes()["trained"], store.boundaries.newest().queue) == (8, ())
    store.close()
