"""Runner loads: how many episodes are open at a time, and how long they wait for a runner."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.episodes.runner_loads import RunnerLoad, RunnerLoads


def test_episodes_are_open_from_their_wait_to_their_end():
    loads: RunnerLoads[int] = RunnerLoads()
    for number in (1, 2, 3):
        loads.opened(number, "a", 10.0)
    loads.begun(1, 12.0)
    loads.begun(2, 13.0)
    loads.closed(1)
    loads.opened(4, "b", None)
    assert loads.take() == {"a": RunnerLoad(3, 3, 2, 5.0), "b": RunnerLoad(1, 1)}
    loads.closed(2)
    assert loads.take() == {"a": RunnerLoad(2, 2), "b": RunnerLoad(1, 1)}, "the period began with two of them"


def test_one_that_is_given_back_is_still_the_same():
    loads: RunnerLoads[int] = RunnerLoads()
    loads.opened(1, "a", 0.0)
    loads.begun(1, 1.0)
    loads.opened(1, "a", 5.0)
    loads.begun(1, 7.0)
    assert loads.take() == {"a": RunnerLoad(1, 1, 2, 3.0)}


def test_an_end_is_counted_once():
    loads: RunnerLoads[int] = RunnerLoads()
    loads.opened(1, "a", 0.0)
    for _ in range(2):
        loads.closed(1)
    loads.begun(1, 3.0)
    assert loads.take() == {"a": RunnerLoad(1, 1)}
    assert loads.take() == {}


def test_episodes_of_training_are_counted_apart():
    """Both counts have their most at different moments."""
    loads: RunnerLoads[str] = RunnerLoads(lambda attempt: attempt.startswith("training"))
    loads.opened("training 1", "a", 0.0)
    loads.opened("training 2", "a", 0.0)
    loads.closed("training 1")
    for number in range(3):
        loads.opened(f"evaluation {number}", "a", 0.0)
    loads.opened("evaluation", "b", 0.0)
    assert loads.take() == {"a": RunnerLoad(4, 2), "b": RunnerLoad(1, 0)}
    loads.closed("training 2")
    assert loads.take() == {"a": RunnerLoad(4, 1), "b": RunnerLoad(1, 0)}
    assert loads.take() == {"a": RunnerLoad(3, 0), "b": RunnerLoad(1, 0)}


STEPS = st.tuples(st.sampled_from(["opened", "begun", "closed", "take"]), st.integers(0, 5))


@given(st.lists(STEPS, max_size=60))
def test_the_most_is_that_of_a_count_by_hand(steps: list[tuple[str, int]]):
    loads: RunnerLoads[int] = RunnerLoads()
    there: set[int] = set()
    most = 0
    for step, number in steps:
        if step == "opened":
            loads.opened(number, "a", 0.0)
            there.add(number)
        elif step == "begun":
            loads.begun(number, 1.0)
        elif step == "closed":
            loads.closed(number)
            there.discard(number)
        else:
            assert loads.take().get("a", RunnerLoad(0, 0)).most_open == most
            most = 0
        most = max(most, len(there))
