"""Rounds of mode OnPolicy: what a machine is worth, and the number of machines that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec import RLJobSpec
from rljob_api.status import MachineForecast, RoundReport
from rljob_operator.policies.scaling import autoscaler, marginal_gain
from tests.support.operator.harness import NOW, make_job

SECONDS = 100.0


def on_policy(machines: int = 4, smallest: int = 1, largest: int = 8, trainer: int = 0) -> RLJobSpec:
    """`trainer`: its accelerators, where each machine has one; 0 for a job on CPUs."""
    rollout: dict[str, Any] = {"machines": machines, "minMachines": smallest, "maxMachines": largest}
    if not trainer:
        return make_job(rollout=rollout).spec
    rollout["acceleratorsPerMachine"] = 1
    return make_job(rollout=rollout, trainer={"acceleratorsPerReplica": trainer}).spec


def round_report(number: int, seconds: Mapping[int, float]) -> RoundReport:
    told = tuple(MachineForecast(machines=machines, seconds=its) for machines, its in seconds.items())
    return RoundReport(round=number, seconds=SECONDS, machine_forecasts=told or None)


def rounds(
    of: RLJobSpec, seconds_of: Callable[[int], float], count: int, wobble: Callable[[int], float] = lambda _: 1.0
):
    """The number of machines after each of so many rounds that are predicted to take `seconds_of(machines)` seconds,
    more or less."""
    memory = autoscaler.desired_machines(of, None, None, False, None, NOW).history
    counts = [of.rollout.machines]
    for number in range(1, count + 1):
        bounds = range(of.rollout.smallest, of.rollout.largest + 1)
        near = range(counts[-1] - 1, counts[-1] + 2)
        told = {one: seconds_of(one) * wobble(3 * number + one) for one in near if one in bounds}
        now = NOW + timedelta(seconds=SECONDS * number)
        found = autoscaler.desired_machines(of, memory, round_report(number, told), True, None, now)
        memory = found.history
        counts.append(found.count)
    return counts


def amdahl(whole: float, split: float) -> Callable[[int], float]:
    """A round that waits for `whole` seconds whatever there is, and shares out `split` seconds."""
    return lambda machines: whole + split / machines


@pytest.mark.parametrize(
    ("seconds_of", "trainer", "ends"),
    [
        (amdahl(0.0, 100.0), 0, 8),  # all of it is shared out
        (amdahl(100.0, 0.0), 0, 1),  # one response makes the round
        (amdahl(20.0, 100.0), 0, 6),  # the sixth brings 55 % of its share, a seventh would bring 49 %
        (amdahl(100.0, 200.0), 0, 4),  # the fourth brings 44 %, a fifth would bring 36 %
        (amdahl(100.0, 80.0), 0, 3),  # the fourth brings 22 %, the third 32 %
        (amdahl(100.0, 40.0), 0, 2),  # the third brings 18 %, the second 33 %
        (amdahl(100.0, 100.0), 4, 4),  # a fifth would bring a third
        (amdahl(100.0, 100.0), 16, 6),  # a sixth brings 60 %, while the more of a trainer waits
    ],
)
def test_a_machine_is_worth_what_it_brings_of_its_share(
    seconds_of: Callable[[int], float], trainer: int, ends: int
) -> None:
    counts = rounds(on_policy(trainer=trainer), seconds_of, 60)
    assert counts[-1] == ends
    assert all(abs(now - was) <= 1 for was, now in pairwise(counts))
    assert counts[:4] == [4] * 4


@given(st.integers(1, 16), st.floats(0.0, 200.0), st.floats(1.0, 2000.0), st.integers(1, 32))
def test_no_other_number_has_a_much_smaller_product_of_time_and_cost(
    start: int, whole: float, split: float, trainer: int
) -> None:
    """From below it ends where the product is least; from above within the margin of the two thresholds."""
    seconds_of = amdahl(whole, split)
    product = {number: seconds_of(number) ** 2 * (number + trainer) for number in range(1, 17)}
    best = min(product, key=lambda number: product[number])
    ends = rounds(on_policy(start, 1, 16, trainer), seconds_of, 120)[-1]
    if start <= best:
        assert abs(ends - best) <= 1
    else:
        assert ends >= best - 1
        assert product[ends] <= product[start] * 1.000001


@pytest.mark.parametrize(
    ("machines", "trainer", "seconds", "brought", "would_bring"),
    [
        (4, 0.0, {3: 40.0, 4: 30.0, 5: 24.0}, 1.0, 1.0),
        (4, 0.0, {3: 30.0, 4: 30.0, 5: 30.0}, 0.0, 0.0),
        (4, 0.0, {3: 35.0, 4: 30.0, 5: 80 / 3}, 0.5, 0.5),
        (4, 0.0, {3: 29.0, 4: 30.0, 5: 31.0}, 0.0, 0.0),
        (4, 0.0, {3: 90.0, 4: 30.0, 5: 10.0}, 1.0, 1.0),
        (4, 4.0, {3: 33.0, 4: 30.0, 5: 28.8}, 0.7, 1 / 3),
        (4, 0.5, {3: 33.0, 4: 30.0, 5: 28.8}, 0.35, 0.1875),
        (1, 2.0, {1: 30.0, 2: 25.0}, 1.0, 0.6),
        (8, 1.0, {7: 30.0, 8: 30.0}, 0.0, 0.0),
    ],
)
def test_what_machines_bring(
    machines: int, trainer: float, seconds: dict[int, float], brought: float, would_bring: float
) -> None:
    shares = marginal_gain.measure(machines, trainer, round_report(1, seconds))
    assert shares is not None
    assert (shares.brought, shares.would_bring) == (pytest.approx(brought), pytest.approx(would_bring))


@pytest.mark.parametrize(
    ("rollout", "trainer", "size"),
    [
        ({}, {"replicas": 2}, 2.0),
        ({"acceleratorsPerMachine": 4}, {"replicas": 2, "acceleratorsPerReplica": 8}, 4.0),
        ({"acceleratorsPerMachine": 8}, {"acceleratorsPerReplica": 4}, 0.5),
        ({"acceleratorsPerMachine": 8}, {}, 0.0),
    ],
)
def test_the_trainer_is_as_large_as_its_accelerators(
    rollout: dict[str, Any], trainer: dict[str, Any], size: float
) -> None:
    assert marginal_gain.trainer_size(make_job(rollout={"machines": 1, **rollout}, trainer=trainer).spec) == size


@pytest.mark.parametrize("seconds", [{}, {3: 40.0, 5: 24.0}, {7: 1.0, 8: 1.0}, {4: 0.0, 5: 1.0}])
def test_a_round_without_a_prediction_for_this_number_is_ignored(seconds: dict[int, float]) -> None:
    assert marginal_gain.measure(4, 1.0, round_report(1, seconds)) is None


def test_rounds_decide_by_four_and_say_why() -> None:
    of, memory = on_policy(), autoscaler.desired_machines(on_policy(), None, None, False, None, NOW).history
    told = {3: 40.0, 4: 30.0, 5: 26.0}
    found = None
    for number in range(1, 5):
        found = autoscaler.desired_machines(of, memory, round_report(number, told), number != 2, None, NOW)
        memory = found.history
        assert (found.count, found.why) == (4, "")
    for number in (5, 6):
        found = autoscaler.desired_machines(of, memory, round_report(number, told), True, None, NOW)
        memory = found.history
    assert found is not None
    assert found.count == 5
    assert found.why == "one machine more was predicted to contribute 77% of its share to rounds 3 to 6"
    assert found.history is not None
    assert (found.history.brought, found.history.would_bring) == ((), ())
    short = autoscaler.desired_machines(of, memory, round_report(7, {4: 9.0, 5: 9.0, 6: 9.0}), True, None, NOW)
    assert short.count == 5, "a round's figures are not enough"


GROWS, SHRINKS, STAYS = {4: 30.0, 5: 24.0, 6: 19.0}, {4: 30.0, 5: 30.0, 6: 30.0}, {4: 33.0, 5: 30.0, 6: 29.0}


def after_growing(*told: dict[int, float]) -> list[int]:
    """The numbers after rounds that are predicted so, from when four rounds had made five machines of four."""
    of = on_policy()
    memory = autoscaler.desired_machines(of, None, None, False, None, NOW).history
    counts = []
    for number, one in enumerate((*[GROWS] * autoscaler.UPDATES, *told), start=1):
        now = NOW + timedelta(seconds=SECONDS * number)
        found = autoscaler.desired_machines(of, memory, round_report(number, one), True, None, now)
        memory = found.history
        counts.append(found.count)
    assert counts[autoscaler.UPDATES - 1] == 5
    return counts[autoscaler.UPDATES :]


def test_a_step_back_rests_on_more_rounds() -> None:
    assert after_growing(*[SHRINKS] * 16) == [5] * 15 + [4]
    assert after_growing(*[STAYS] * 10, *[SHRINKS] * 6) == [5] * 16, "the last four say so, all of them do not"
    assert after_growing(*[STAYS] * 2, *[SHRINKS] * 16)[-1] == 4
    assert after_growing(*[GROWS] * 4) == [5, 5, 5, 6], "further on it goes as before"


@given(st.integers(1, 16), st.floats(0.0, 200.0), st.floats(0.0, 2000.0), st.integers(0, 2**16))
def test_the_number_of_a_round_settles(start: int, whole: float, split: float, noise: int) -> None:
    """From any number it moves in one direction, and stops, though what is predicted is off by up to 1 % of a share."""
    seconds_of = amdahl(whole + 0.1, split)

    def wobble(place: int) -> float:
        return 1.0 + 0.01 / 16 * (((noise + place) * 7919) % 101 / 50 - 1)

    counts = rounds(on_policy(start, 1, 16), seconds_of, 160, wobble)
    steps = [now - was for was, now in pairwise(counts)]
    assert all(abs(step) <= 1 for step in steps)
    assert len({step for step in steps if step}) <= 1, counts
    assert len(set(counts[-40:])) == 1
    changes = [number for number, step in enumerate(steps) if step]
    assert all(later - before >= autoscaler.UPDATES for before, later in pairwise(changes))


@given(st.integers(1, 8), st.lists(st.floats(0.97, 1.03), min_size=400, max_size=400))
def test_noise_does_not_have_it_step_to_and_fro(start: int, noise: list[float]) -> None:
    """A large trainer makes large shares of little seconds, and so of what they are off by."""
    counts = rounds(on_policy(start, 1, 8, 16), amdahl(600.0, 150.0), 120, lambda place: noise[place])
    steps = [(number, now - was) for number, (was, now) in enumerate(pairwise(counts)) if now != was]
    turns = [number - before for (before, one), (number, other) in pairwise(steps) if one != other]
    assert all(apart >= autoscaler.TURN for apart in turns)
