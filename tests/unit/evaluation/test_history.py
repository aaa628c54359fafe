"""The history of evaluations, and which weights are the best."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.evaluation_metric import EvaluationMetric
from rljob_runtime.evaluation import Estimate, EvaluationResult
from rljob_runtime.evaluation.history import (
    History,
    best_of,
    model_to_give_up,
    models_to_keep,
    of_name,
    value_of,
    with_result,
)

AVERAGE, PASS = EvaluationMetric.AVERAGE, EvaluationMetric.PASS_AT_K
PLACES = st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.0, None]))


def result(name: str, round: int, average: float | None = 0.5, passed: float | None = 0.5) -> EvaluationResult:
    pass_at = {1: Estimate(0.9 - round / 100, 0.1, 9, 0)}
    if passed is not None:
        pass_at[4] = Estimate(passed, 0.1, 9, 0)
    return EvaluationResult(name, round, round + 1, 9, 4, average=average, pass_at=pass_at)


def added(places: list[tuple[str, int, float | None]]) -> History:
    history: History = ()
    for name, round, average in places:
        history = with_result(history, result(name, round, average))
    return history


@pytest.mark.parametrize(
    ("metric", "results", "best"),
    [
        (AVERAGE, [], None),
        (AVERAGE, [(0, 0.1, 0.9), (1, 0.4, 0.2), (2, 0.3, 0.1)], 1),
        (PASS, [(0, 0.1, 0.9), (1, 0.4, 0.2), (2, 0.3, 0.1)], 0),
        (AVERAGE, [(0, 0.1, 0.0), (1, 0.4, 0.0), (2, 0.4, 0.0)], 1),
        (PASS, [(0, 0.1, 0.2), (1, 0.4, 0.8), (2, 0.3, 0.8)], 1),
        # An evaluation without the metric is no candidate, and not the worst.
        (AVERAGE, [(0, None, None), (1, -1.0, None)], 1),
        (PASS, [(0, 0.2, None), (1, 0.1, 0.0)], 1),
        (PASS, [(0, 0.2, None)], None),
    ],
)
def test_which_weights_are_the_best(metric: EvaluationMetric, results, best: int | None) -> None:
    found = best_of([result("a", *one) for one in results], metric)
    assert (found.round if found is not None else None) == best
    found = best_of([result("a", *one) for one in results[::-1]], metric)
    assert (found.round if found is not None else None) == best


def test_a_result_of_an_earlier_round_abandons_later_ones() -> None:
    history = added([("a", 0, 0.1), ("a", 2, 0.2), ("b", 3, 0.3), ("a", 4, 0.4), ("b", 3, 0.5)])
    assert [(one.name, one.round, one.average) for one in history] == [("a", 0, 0.1), ("a", 2, 0.2), ("b", 3, 0.5)]


@given(st.lists(PLACES, max_size=20))
def test_an_added_result_replaces_its_duplicate_and_later_rounds(places) -> None:
    history = added(places)
    assert len({one.key for one in history}) == len(history)
    rounds = [one.round for one in history]
    assert rounds == sorted(rounds)
    if places:
        assert (history[-1].name, history[-1].round, history[-1].average) == places[-1]


@given(st.lists(PLACES, max_size=20), st.sampled_from([AVERAGE, PASS]))
def test_the_best_is_not_worse_than_any_other(places, metric: EvaluationMetric) -> None:
    results = of_name(added(places), "a")
    assert all(one.name == "a" for one in results)
    best = best_of(results, metric)
    for one in results:
        value = value_of(one, metric)
        if value is not None:
            assert best is not None
            highest = value_of(best, metric)
            assert highest is not None
            assert value < highest or (value == highest and best.round <= one.round)


@pytest.mark.parametrize(
    ("averages", "floor", "kept"),
    [
        ([], 0, ()),
        ([None], 0, ()),
        ([0.1, 0.4, 0.3, 0.2], 3, (1,)),
        # A rewind to round 0 would abandon the best.
        ([0.1, 0.4, 0.3, 0.2], 0, (0, 1)),
        ([0.1, 0.2, 0.3, 0.4], 1, (1, 2, 3)),
        ([0.4, 0.4, 0.5, None], 2, (2,)),
        ([0.4, 0.4, 0.4], 0, (0,)),
    ],
)
def test_which_models_are_kept(averages: list[float | None], floor: int, kept: tuple[int, ...]) -> None:
    results = [result("a", round, average) for round, average in enumerate(averages)]
    assert models_to_keep(results, AVERAGE, floor) == kept


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=8),
    st.integers(0, 8),
    st.integers(0, 8),
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=4),
)
def test_the_best_is_kept_whatever_round_the_job_returns_to(averages, floor: int, back: int, later) -> None:
    """It returns to a round from the floor on, and is evaluated again there."""
    results = [result("a", round, average) for round, average in enumerate(averages)]
    models = set(models_to_keep(results, AVERAGE, floor))
    left = [one for one in results if one.round <= max(floor, back)]
    fresh = [result("a", max(floor, back) + number, average) for number, average in enumerate(later, start=1)]
    best = best_of(left + fresh, AVERAGE)
    if best is not None:
        assert best.round in models | {one.round for one in fresh}


@pytest.mark.parametrize(
    ("saved", "results", "order"),
    [
        ((), [], []),
        # Without a result all may become the best; older weights are likelier to be worse.
        ((0, 5), [], [0, 5]),
        ((0,), [(0, 0.1)], []),
        ((0, 2, 4, 6), [(0, 0.2), (2, 0.1), (4, 0.3)], [2, 0, 6]),
        ((0, 2, 4), [(0, 0.2), (2, 0.2), (4, 0.2)], [4, 2]),
        # Without the metric, or without a result where later rounds have one, a model cannot win.
        ((0, 2, 4, 6, 8), [(0, 0.2), (4, None), (6, 0.4)], [2, 4, 0, 8]),
    ],
)
def test_which_model_gives_way_first(saved, results, order: list[int]) -> None:
    found = []
    left = list(saved)
    while True:
        step = model_to_give_up(left, [result("a", *one) for one in results if one[0] in left], AVERAGE)
        if step is None:
            break
        found.append(step)
        left.remove(step)
    assert found == order


@given(st.sets(st.integers(0, 6)), st.lists(PLACES, max_size=20), st.sampled_from([AVERAGE, PASS]))
def test_models_give_way_until_the_best_is_left(saved: set[int], places, metric: EvaluationMetric) -> None:
    results = [one for one in of_name(added(places), "a") if one.round in saved]
    best = best_of(results, metric)
    given_up: list[int] = []
    while (step := model_to_give_up(saved, results, metric)) is not None:
        given_up.append(step)
        saved.remove(step)
        results = [one for one in results if one.round in saved]
        assert best_of(results, metric) == best, "what is left has the same best"
    assert saved == ({best.round} if best is not None else set())
