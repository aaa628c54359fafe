"""The seconds that switches save are predicted together with the size in which a stage begins."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.scheduling.adaptive_tp.forecast import (
    DRAWN_RESPONSES,
    MOST_DRAWS,
    Machine,
    stages_to_draw,
    switch_gains,
)
from rljob_runtime.scheduling.adaptive_tp.load_curve import load_curve
from rljob_runtime.scheduling.adaptive_tp.policy import LEAST_SECONDS, SwitchRules
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, Running, SizedEngine
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Race, generate
from rljob_runtime.scheduling.adaptive_tp.switch_plan import expected_seconds
from rljob_runtime.scheduling.round_planner.survival import LengthObservation, Survival
from tests.support.adaptive_tp import ACCELERATORS, ENGINES, LIMIT, costs, engine


def lengths(seed: int = 0, count: int = 200) -> list[int]:
    random = Random(seed)
    return [int(min(LIMIT, 50 + random.expovariate(1 / 900))) for _ in range(count)]


def machine(
    fixed: float = 0.5, most: int = 3, engines: dict[int, SizedEngine] = ENGINES, sizes: tuple[int, ...] = (1, 2, 4)
) -> Machine:
    return Machine(engines, ACCELERATORS, costs(fixed), SwitchRules(frozenset(sizes), max_switches=most))


def gains(its: Machine, past: list[int] | None = None) -> dict[int, float]:
    past = past or lengths()
    asked = [Asked(100, one) for one in past]
    return switch_gains(its, [asked], [LengthObservation(one) for one in past], LIMIT)


def static(size: int, past: list[int]) -> float:
    return generate([Asked(100, one) for one in past], size, ENGINES, ACCELERATORS, {}).seconds


def played(size: int, past: list[int]) -> float:
    asked, pairs = [Asked(100, one) for one in past], machine().costs.table(ENGINES, ACCELERATORS)
    return generate(asked, size, ENGINES, ACCELERATORS, pairs, machine().chooser(past, LIMIT)).seconds


@pytest.mark.parametrize("seed", [0, 6])
def test_stages_with_switches_are_predicted_about_as_they_are_played(seed: int) -> None:
    """A wide start looks hopeless without switches, and with them it is nearly as good as the others."""
    past = lengths(seed)
    found = gains(machine(), past)
    without = {size: static(size, past) for size in ENGINES}
    assert max(without.values()) > 1.5 * min(without.values())
    for size in ENGINES:
        assert without[size] - found[size] == pytest.approx(played(size, past), rel=0.08)


@pytest.mark.parametrize("seed", [0, 2])
def test_a_size_whose_caches_become_full_is_left_as_it_is_played(seed: int) -> None:
    """Nothing waits at its first look. Later responses wait, and a switch pays once another size holds all."""
    past = lengths(seed)
    small = {size: replace(one, kv_tokens=9000 * size) for size, one in ENGINES.items()}
    its, asked = machine(engines=small), [Asked(100, one) for one in past]
    without = generate(asked, 1, small, ACCELERATORS, {})
    assert without.preemptions > 100, "the caches are full"
    pairs = its.costs.table(small, ACCELERATORS)
    switched = generate(asked, 1, small, ACCELERATORS, pairs, its.chooser(past, LIMIT)).seconds
    assert without.seconds - gains(its, past)[1] == pytest.approx(switched, rel=0.05)


def test_the_speed_of_a_size_is_taken_from_where_nothing_waits_any_longer() -> None:
    """Wide sizes have less cache here, and their first looks are before it is full: from there they seem slower."""
    small = {size: replace(one, kv_tokens=9000) for size, one in ENGINES.items()}
    its, ratios = machine(engines=small), []
    pairs = its.costs.table(small, ACCELERATORS)
    for seed in range(3):
        past = lengths(seed)
        asked = [Asked(100, one) for one in past]
        without = generate(asked, 1, small, ACCELERATORS, {}).seconds
        switched = generate(asked, 1, small, ACCELERATORS, pairs, its.chooser(past, LIMIT)).seconds
        ratios.append((without - gains(its, past)[1]) / switched)
    assert fmean(ratios) == pytest.approx(1.0, abs=0.05)


def test_the_plan_expects_no_size_to_be_faster_than_it_is() -> None:
    """A machine waits for its fullest replica: with even shares, sizes with many replicas would look faster."""
    ratios: dict[int, list[float]] = {size: [] for size in ENGINES}
    for seed in range(8):
        past = lengths(seed)
        running = tuple(Running(100, 1) for _ in past)
        for size, engine_ in ENGINES.items():
            snapshot = MachineSnapshot(size, ACCELERATORS, (running,), Survival(past), LIMIT)
            expected = expected_seconds(load_curve(snapshot), engine_, ACCELERATORS // size)
            ratios[size].append(expected / static(size, past))
    assert all(fmean(found) == pytest.approx(1.0, abs=0.03) for found in ratios.values())


@pytest.mark.parametrize(
    ("its", "expected"),
    [
        (machine(fixed=1e4), {1: 0.0, 2: 0.0, 4: 0.0}),
        (machine(most=0), {1: 0.0, 2: 0.0, 4: 0.0}),
        (machine(sizes=(2,), engines={2: ENGINES[2], 4: engine(4, kv_tokens=300)}), {}),
        (machine(engines={2: ENGINES[2]}), {}),
        (machine(engines={**ENGINES, 1: engine(1, kv_tokens=300), 2: engine(2, kv_tokens=300)}), {}),
    ],
    ids=["switches cost too much", "no switch is allowed", "one size", "one size is known", "others are too small"],
)
def test_where_nothing_is_gained(its: Machine, expected: dict[int, float]) -> None:
    assert gains(its) == expected


def test_a_size_that_may_not_be_used_is_a_start_and_no_target() -> None:
    """A job may begin in a size to which its machines do not switch."""
    found = gains(machine(sizes=(1, 2)))
    assert 0 < found[1] < gains(machine())[1]
    assert found[4] > 0
    assert gains(machine(sizes=(2,))).keys() == {1, 4}, "2 has nowhere to go"


def test_responses_that_wait_to_the_end_leave_nothing_to_gain() -> None:
    alike = [500] * 64
    small = {size: replace(ENGINES[size], kv_tokens=700) for size in ENGINES}
    assert gains(machine(engines=small), alike) == {1: 0.0, 2: 0.0, 4: 0.0}


def raced(its: Machine, groups: int, group_size: int, launched: tuple[int, int] = (25, 8)) -> dict[int, float]:
    past = lengths()
    asked = [Asked(100, one, number // launched[1]) for number, one in enumerate(past[: launched[0] * launched[1]])]
    return switch_gains(its, [asked], [LengthObservation(one) for one in past], LIMIT, Race(groups, group_size))


def test_switches_of_a_race_are_predicted_as_its_machines_would_make_them() -> None:
    """Prompts x responses: 25 x 8 are launched, 20 x 6 are kept."""
    found, past, race = raced(machine(), 20, 6), lengths(), Race(20, 6)
    asked = [Asked(100, one, number // 8) for number, one in enumerate(past)]
    choose = machine().chooser(past, LIMIT)
    pairs = machine().costs.table(ENGINES, ACCELERATORS, machine().rules.state)
    for size in ENGINES:
        without = generate(asked, size, ENGINES, ACCELERATORS, {}, race=race)
        played = generate(asked, size, ENGINES, ACCELERATORS, pairs, choose, race)
        assert without.seconds - found[size] == pytest.approx(played.seconds, rel=0.12)


def test_a_race_has_less_tail_to_shorten() -> None:
    short, plain = raced(machine(), 20, 6), raced(machine(), 25, 8)
    assert plain == gains(machine()), "all are kept"
    assert all(short[size] < plain[size] for size in ENGINES)
    assert raced(machine(fixed=1e4), 20, 6) == dict.fromkeys(ENGINES, 0.0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99), st.integers(1, 60), st.floats(0.0, 5.0))
def test_a_gain_is_clear_or_none_and_the_same_each_time(seed: int, count: int, fixed: float) -> None:
    found = gains(machine(fixed), lengths(seed, count))
    assert all(gain == 0 or gain > LEAST_SECONDS for gain in found.values())
    assert found == gains(machine(fixed), lengths(seed, count))


@given(st.integers(0, 10**6))
def test_large_stages_are_drawn_less_often(responses: int) -> None:
    assert 1 <= stages_to_draw(responses) <= MOST_DRAWS
    assert stages_to_draw(responses) == 1 or stages_to_draw(responses) * responses <= DRAWN_RESPONSES


def test_engines_that_run_few_responses_save_less_as_most_wait() -> None:
    few = {size: replace(its, max_running=8) for size, its in ENGINES.items()}
    found, free = gains(machine(engines=few)), gains(machine())
    assert 0 <= found[4] < 0.5 * free[4]
