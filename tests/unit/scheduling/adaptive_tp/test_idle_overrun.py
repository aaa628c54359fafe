"""Visits that may outlast an update: to which layout, of which machine, and from which budget."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.adaptive_tp.idle_profile import (
    ENOUGH_SECONDS,
    MOST_TRIES,
    OVERRUN_SHARE,
    SAVED_SHARE,
    SHARE,
    SLOW,
    IdleOutcome,
    IdleProfile,
    OverrunBudget,
    Rest,
    RestingMachine,
    plan_profiles,
)
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PRIORS, Part, SwitchCosts

OVERRUNS, TOO_SHORT = IdleOutcome.OVERRUNS, IdleOutcome.TOO_SHORT
UPDATE = 20.0
SHORT = Rest((UPDATE,) * 4)
THERE = sum(PRIORS[part] for part in (Part.SLEEP, Part.BUILD, Part.LOAD))
BACK = sum(PRIORS[part] for part in (Part.SLEEP, Part.WAKE))
COST = SLOW * (THERE + BACK) + ENOUGH_SECONDS - SHARE * UPDATE
"""Predicted seconds by which a build outlasts such an update: 51.4."""
JOB = OverrunBudget(seconds=1.01 * COST / OVERRUN_SHARE, left=1.01 * COST / SAVED_SHARE)
"""A job that can just afford one."""


def resting(name: str = "a", size: int = 1, sizes: Sequence[int] = (1, 2, 4), **more) -> RestingMachine:
    """Engines that its processes ever had are kept, unless `built` says otherwise."""
    ran = more.pop("ran", (size,))
    return RestingMachine(name, size, sizes, ran, **{"built": ran, **more})


def plans_of(
    machines: Sequence[RestingMachine],
    known: Sequence[int] = (1,),
    budget: OverrunBudget = JOB,
    rest: Rest = SHORT,
) -> dict[str, IdleProfile]:
    return plan_profiles(machines, known, rest, SwitchCosts(), budget)


def budget(seconds: float = 1.0, spent: float = 0.0, left: float = 1.0) -> OverrunBudget:
    """A budget as multiples of what a visit costs."""
    return OverrunBudget(seconds * COST / OVERRUN_SHARE, spent * COST, left * COST / SAVED_SHARE)


@pytest.mark.parametrize(
    ("machine", "known", "budget", "outcome", "size"),
    [
        (resting(), (1,), JOB, OVERRUNS, 2),
        (resting(), (1,), budget(0.99, left=9.0), TOO_SHORT, None),
        (resting(), (1,), budget(1.99, 1.0, 9.0), TOO_SHORT, None),
        (resting(), (1,), budget(2.01, 1.0, 9.0), OVERRUNS, 2),
        (resting(), (1,), budget(9.0, left=0.99), TOO_SHORT, None),
        (resting(), (1,), budget(9.0, left=0.0), TOO_SHORT, None),
        (resting(), (1, 2), JOB, OVERRUNS, 4),
        (resting(), (1, 2, 4), JOB, TOO_SHORT, None),
        (resting(tries={2: MOST_TRIES}), (1,), JOB, OVERRUNS, 4),
        (resting(sizes=(1, 2), tries={2: MOST_TRIES}), (1,), JOB, IdleOutcome.NOTHING_NEW, None),
        (resting(sizes=(1, 2), ran=(1, 2)), (1,), OverrunBudget(), IdleOutcome.PROFILED, 2),
    ],
    ids=[
        "the job can just afford it",
        "it is too young",
        "it has spent too much",
        "it has earned it once more",
        "what is left repays too little",
        "the job ends",
        "the size that no machine has shown",
        "all sizes were shown by other machines",
        "nothing came of too many visits to another size",
        "nothing came of too many visits",
        "its engines are built, so the update is long enough",
    ],
)
def test_a_visit_outlasts_an_update_if_the_job_affords_it(
    machine: RestingMachine, known: Sequence[int], budget: OverrunBudget, outcome: IdleOutcome, size: int | None
) -> None:
    plan = plans_of([machine], known, budget)["a"]
    assert (plan.outcome, plan.size) == (outcome, size)
    assert plan.overrun == (pytest.approx(COST) if outcome is OVERRUNS else 0.0)


def test_a_visit_may_measure_long_enough_if_its_way_is_slow() -> None:
    plan = plans_of([resting()])["a"]
    assert plan.until == pytest.approx(SLOW * THERE + ENOUGH_SECONDS)
    assert plan.least_seconds == ENOUGH_SECONDS
    assert plans_of([resting()], rest=Rest((300.0,)))["a"].least_seconds == 0.0


def test_one_machine_visits_the_one_that_costs_least() -> None:
    plans = plans_of([resting("c"), resting("a"), resting("b", ran=(1, 4))], rest=Rest((5.0,)))
    assert {name: plan.size for name, plan in sorted(plans.items())} == {"a": None, "b": 4, "c": None}
    assert plans["a"].outcome is TOO_SHORT


def test_no_visit_outlasts_an_update_for_what_another_measures_in_time() -> None:
    plans = plans_of([resting("a", sizes=(1, 2)), resting("b", sizes=(1, 2), ran=(1, 2))])
    assert {name: plan.outcome for name, plan in plans.items()} == {"a": TOO_SHORT, "b": IdleOutcome.PROFILED}


def test_all_machines_together_try_a_size_in_vain_so_often() -> None:
    spread = [resting(name, sizes=(1, 2), tries={2: 1}) for name in "abc"]
    assert len(spread) == MOST_TRIES
    assert {plan.outcome for plan in plans_of(spread).values()} == {TOO_SHORT}
    assert plans_of(spread[1:])["b"].outcome is OVERRUNS


UPDATES = st.lists(st.tuples(st.floats(1, 60), st.floats(1, 2000)), min_size=1, max_size=60)


@given(UPDATES, st.integers(1, 3), st.none() | st.floats(0, 60))
def test_overruns_never_exceed_what_the_job_has_earned(
    updates: list[tuple[float, float]], count: int, build: float | None
) -> None:
    """`updates`: seconds of each, and of the generation before it. Measured overruns are not longer than predicted."""
    machines, done, seconds, spent = [resting(name) for name in "abc"[:count]], list[float](), 0.0, 0.0
    for number, (update, generation) in enumerate(updates):
        seconds += generation
        left = (len(updates) - number - 1) * generation
        budget = OverrunBudget(seconds, spent, left)
        plans = plans_of(machines, (1,), budget, Rest(tuple(done), build_seconds=build))
        beyond = [plan for plan in plans.values() if plan.outcome is OVERRUNS]
        assert len(beyond) <= 1
        for plan in beyond:
            assert 0 < plan.overrun <= SAVED_SHARE * left
            spent += plan.overrun
        done.append(update)
        seconds += update
        assert spent <= OVERRUN_SHARE * seconds
        if number == len(updates) - 1:
            assert not beyond, "nothing repays it"


@given(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1e6))
def test_without_a_budget_no_visit_outlasts_an_update(seconds: float, spent: float, left: float) -> None:
    found = OverrunBudget(seconds, spent, left)
    plan = plans_of([resting()], budget=found)["a"]
    assert (plan.outcome is OVERRUNS) == (spent + COST <= OVERRUN_SHARE * seconds and SAVED_SHARE * left >= COST)
