"""The start of a stage and the switches that follow are predicted together."""

from __future__ import annotations

from random import Random

from rljob_runtime.scheduling.adaptive_tp.policy import SwitchRules
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, MadeSwitch, StageResult
from rljob_runtime.scheduling.adaptive_tp.start import Machine, best_start, predict_starts
from tests.support.adaptive_tp import ACCELERATORS, ENGINES, LIMIT, costs, engine


def lengths(seed: int, count: int = 200) -> list[int]:
    random = Random(seed)
    return [int(min(LIMIT, 50 + random.expovariate(1 / 900))) for _ in range(count)]


def predicted(most: int, engines=ENGINES) -> dict[int, StageResult]:
    past = lengths(0)
    machine = Machine(engines, ACCELERATORS, costs(0.5), SwitchRules(frozenset(ENGINES), max_switches=most))
    return predict_starts(machine, [Asked(100, one) for one in past], past, LIMIT)


def test_switches_change_which_start_is_the_best():
    """Without a switch a wide size is the best for all phases; with one a narrow start is."""
    static, switched = predicted(0), predicted(3)
    assert not any(one.switches for one in static.values())
    assert best_start(switched) < best_start(static)
    assert switched[best_start(switched)].seconds < 0.97 * static[best_start(static)].seconds


def test_a_size_that_does_not_hold_the_longest_is_left_out():
    small = {**ENGINES, 1: engine(1, kv_tokens=300)}
    assert set(predicted(0, small)) == {2, 4}


def test_the_prediction_is_the_same_each_time():
    assert predicted(3) == predicted(3)


def test_of_equal_stages_the_one_with_the_fewest_switches_starts():
    switch = MadeSwitch(1.0, 1, 4, 9, 0.5)
    near = {1: StageResult(99.5, (switch,)), 4: StageResult(100.0)}
    assert best_start(near) == 4
    assert best_start({**near, 1: StageResult(98.0, (switch,))}) == 1


def test_without_a_size_there_is_no_start():
    assert best_start({}) is None
    assert best_start({1: StageResult(9.0), 2: StageResult(7.0), 4: StageResult(7.0)}) == 2
