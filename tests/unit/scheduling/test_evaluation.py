"""When a job is evaluated, and which replica generates which response."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols.trajectory import Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.evaluation import (
    MOST_RESPONSES,
    EvaluationProgress,
    ReplicaLoad,
    evaluation_key,
    evaluation_seed,
    is_due,
    responses,
    spare_room,
)
from rljob_runtime.scheduling.reward_failure import RewardFailure


@pytest.mark.parametrize(
    ("every", "rounds", "steps"),
    [(1, 3, [0, 1, 2, 3]), (2, 5, [0, 2, 4, 5]), (10, 4, [0, 4]), (4, 4, [0, 4]), (3, 1, [0, 1])],
)
def test_steps_that_are_evaluated(every: int, rounds: int, steps: list[int]) -> None:
    assert [step for step in range(rounds + 1) if is_due(every, step, rounds)] == steps


def test_keys_of_evaluations_are_no_keys_of_training() -> None:
    key = evaluation_key("gsm8k", 10, 3)
    assert key.evaluation == "gsm8k"
    assert PromptKey(10, 3).evaluation is None
    assert PromptKey(10, 3, "gsm8k").evaluation is None
    assert PromptKey.parse(str(key)) == key


def test_seed_depends_on_the_response_and_not_on_the_step() -> None:
    def seed(step: int, index: int, sample: int, name: str = "a") -> int:
        return evaluation_seed(7, TrajectoryKey(evaluation_key(name, step, index), sample))

    assert seed(0, 1, 2) == seed(30, 1, 2)
    assert len({seed(0, 1, 2), seed(0, 2, 1), seed(0, 1, 3), seed(0, 1, 2, "b")}) == 4


@pytest.mark.parametrize(
    ("loads", "waiting", "urgent", "room"),
    [
        ({"a": (0, 0), "b": (0, 0)}, 5, False, {"a": 3, "b": 2}),
        ({"a": (0, 0), "b": (9, 0)}, 4, False, {"a": 2}),
        ({"a": (0, 0), "b": (9, 0)}, 4, True, {"a": 2, "b": 2}),
        ({"a": (1, 0), "b": (9, 0)}, 4, False, {}),
        ({"a": (0, 3), "b": (0, 0)}, 1, False, {"b": 1}),
        ({"a": (0, 0)}, 500, False, {"a": MOST_RESPONSES}),
        ({"a": (0, MOST_RESPONSES)}, 5, True, {}),
        ({}, 5, True, {}),
        ({"a": (0, 0)}, 0, True, {}),
    ],
)
def test_room(loads: dict[str, tuple[int, int]], waiting: int, urgent: bool, room: dict[str, int]) -> None:
    assert spare_room({name: ReplicaLoad(*load) for name, load in loads.items()}, waiting, urgent) == room


LOADS = st.dictionaries(
    st.sampled_from("abcdef"), st.builds(ReplicaLoad, st.integers(0, 3), st.integers(0, MOST_RESPONSES)), max_size=6
)


@given(LOADS, st.integers(0, 500), st.booleans())
def test_room_is_bounded_fair_and_idle_first(loads: dict[str, ReplicaLoad], waiting: int, urgent: bool) -> None:
    room = spare_room(loads, waiting, urgent)
    assert sum(room.values()) <= waiting
    after = {name: loads[name].evaluation + count for name, count in room.items()}
    assert all(count <= MOST_RESPONSES for count in after.values())
    assert urgent or not any(loads[name].training for name in room)
    if loads and urgent and waiting:
        # Work is left only if every replica is full, or has its share.
        share = min(MOST_RESPONSES, -(-(waiting + sum(load.evaluation for load in loads.values())) // len(loads)))
        full = all(loads[name].evaluation + room.get(name, 0) >= share for name in loads)
        assert sum(room.values()) == waiting or full


KEYS = responses("check", 4, (7, 3, 5), 2)


def test_every_prompt_has_a_response_before_any_has_two() -> None:
    assert [(key.prompt.index, key.sample) for key in KEYS] == [(7, 0), (3, 0), (5, 0), (7, 1), (3, 1), (5, 1)]
    assert {key.prompt.epoch for key in KEYS} == {4}


def test_life_of_a_response() -> None:
    progress = EvaluationProgress(KEYS, 100, failures=1)
    (first, second) = progress.launch({"a": 1, "b": 1})
    assert (first.lease, second.lease) == (Lease("a", 100), Lease("b", 100))
    assert progress.void() == dict.fromkeys(KEYS[2:], 99)
    assert progress.load("a") == 1
    assert not progress.generated(first.key, Lease("b", 100)), "another replica's"
    assert progress.generated(first.key, first.lease)
    assert progress.settle(first.key)
    assert not progress.settle(first.key), "once"
    assert progress.requeue([second.key]) == [second]
    assert not progress.generated(second.key, second.lease), "its lease is void"
    (again,) = progress.launch({"c": 1})
    assert (again.key, again.lease) == (second.key, Lease("c", 101))
    assert progress.highest_attempt == 101


def test_failed_rewards_are_requested_again_unless_the_text_is_at_fault() -> None:
    progress = EvaluationProgress(KEYS, 1, failures=1)
    assert all(progress.reward_failed(KEYS[0], RewardFailure(counts=False)) for _ in range(4))
    assert progress.reward_failed(KEYS[0], RewardFailure())
    assert not progress.reward_failed(KEYS[0], RewardFailure())
    assert not progress.reward_failed(KEYS[1], RewardFailure(by_response=True))


FATES = st.lists(st.sampled_from(["lost", "ended", "waits", "aborted"]), max_size=40)


@given(FATES)
def test_each_response_settles_once_under_any_order_of_losses(fates: list[str]) -> None:
    progress = EvaluationProgress(KEYS, 1, failures=0)
    settled: Counter[TrajectoryKey] = Counter()
    attempts: Counter[TrajectoryKey] = Counter()
    while settled.total() < len(KEYS):
        for launch in progress.launch({"a": 2, "b": 1}):
            assert launch.lease.attempt > attempts[launch.key]
            attempts[launch.key] = launch.lease.attempt
        running = progress.running()
        assert len(running) + progress.waiting + sum(settled.values()) == len(KEYS)
        for launch in running:
            match fates.pop() if fates else "ended":
                case "lost":
                    progress.requeue([launch.key])
                case "aborted":
                    assert progress.generated(launch.key, launch.lease)
                    progress.restart(launch.key)
                    assert not progress.settle(launch.key), "it has no response"
                case "ended":
                    assert progress.generated(launch.key, launch.lease)
                    settled[launch.key] += progress.settle(launch.key)
    assert settled == Counter(KEYS)
