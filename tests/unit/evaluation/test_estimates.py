"""Estimates of an evaluation: tables, and every subset of small evaluations."""

from __future__ import annotations

from itertools import combinations
from math import comb, isclose, sqrt
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.evaluation.estimates import (
    Estimate,
    average_at_k,
    chance_of_pass,
    default_ks,
    pass_at_k,
    passes,
)

REWARDS = st.lists(st.lists(st.floats(-10, 10), max_size=6), max_size=8)
PASSED = st.lists(st.lists(st.booleans(), max_size=7), max_size=8)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([], Estimate(None, None, 0, 0)),
        ([[]], Estimate(None, None, 0, 1)),
        ([[1.0, 0.0]], Estimate(0.5, None, 1, 0)),
        ([[1.0, 1.0], [0.0, 0.0]], Estimate(0.5, 0.5, 2, 0)),
        ([[1.0, 1.0], [0.0, 0.0], []], Estimate(0.5, 0.5, 2, 1)),
        # The response that is left of the second prompt counts as much as two of the first.
        ([[1.0, 1.0], [0.0]], Estimate(0.5, 0.5, 2, 0)),
        ([[1.0, 0.0], [0.0, 1.0]], Estimate(0.5, 0.0, 2, 0)),
        ([[0.0], [0.0], [0.0], [1.0]], Estimate(0.25, 0.25, 4, 0)),
    ],
)
def test_averages(rewards: list[list[float]], expected: Estimate) -> None:
    assert average_at_k(rewards) == expected


@pytest.mark.parametrize(
    ("n", "right", "k", "expected"),
    [
        (4, 0, 1, 0.0),
        (4, 1, 1, 0.25),
        (4, 1, 2, 0.5),
        (4, 1, 4, 1.0),
        (4, 2, 2, 1 - 1 / 6),
        (4, 3, 2, 1.0),
        (4, 4, 1, 1.0),
        (1, 1, 1, 1.0),
        (200, 1, 10, 0.05),
        # A product of floats loses these.
        (10**18, 1, 1, 1e-18),
        (1000, 1, 999, 0.999),
        (4000, 2000, 2000, 1.0),
    ],
)
def test_chances_of_a_pass(n: int, right: int, k: int, expected: float) -> None:
    assert isclose(chance_of_pass(n, right, k), expected, rel_tol=1e-15)


@pytest.mark.parametrize(
    ("passed", "k", "expected"),
    [
        ([], 1, Estimate(None, None, 0, 0)),
        ([[True, False]], 3, Estimate(None, None, 0, 1)),
        ([[True, False], [True, True, False]], 3, Estimate(1.0, None, 1, 1)),
        ([[True, False], [False, False]], 1, Estimate(0.25, 0.25, 2, 0)),
        ([[True, False], [False, False]], 2, Estimate(0.5, 0.5, 2, 0)),
    ],
)
def test_pass_at_k(passed: list[list[bool]], k: int, expected: Estimate) -> None:
    assert pass_at_k(passed, k) == expected


def test_pass_at_0_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@0: k is at least 1"):
        pass_at_k([[True]], 0)


@given(PASSED, st.integers(1, 7))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_response(passed: list[list[bool]], k: int) -> None:
    shares = [fmean(any(subset) for subset in combinations(each, k)) for each in passed if len(each) >= k]
    estimate = pass_at_k(passed, k)
    assert (estimate.prompts, estimate.missing) == (len(shares), len(passed) - len(shares))
    if shares:
        assert estimate.value is not None
        assert isclose(estimate.value, fmean(shares), abs_tol=1e-12)
    if len(shares) > 1:
        assert estimate.error is not None
        assert isclose(estimate.error, stdev(shares) / sqrt(len(shares)), abs_tol=1e-7)


@given(st.integers(1, 300), st.data())
def test_a_chance_is_a_chance_and_grows_with_k(n: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, n))
    chances = [chance_of_pass(n, right, k) for k in range(1, n + 1)]
    assert chances == sorted(chances)
    assert chances[0] == right / n
    assert chances[-1] == (1.0 if right else 0.0)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6))
def test_pass_at_k_is_unbiased(right_in_all: int, n: int, k: int) -> None:
    """Over all n-subsets of a pool of responses, its mean is the pool's own chance."""
    pool = [place < right_in_all for place in range(7)]
    if k <= n:
        drawn = fmean(chance_of_pass(n, sum(subset), k) for subset in combinations(pool, n))
        assert isclose(drawn, 1 - comb(7 - right_in_all, k) / comb(7, k), abs_tol=1e-12)


@given(REWARDS)
def test_an_average_is_the_mean_of_means_and_its_error_that_of_prompts(rewards: list[list[float]]) -> None:
    means = [fmean(each) for each in rewards if each]
    estimate = average_at_k(rewards)
    assert (estimate.prompts, estimate.missing) == (len(means), len(rewards) - len(means))
    if means:
        assert estimate.value is not None
        assert isclose(estimate.value, fmean(means), abs_tol=1e-9)
    if len(means) > 1:
        assert estimate.error is not None
        assert isclose(estimate.error, stdev(means) / sqrt(len(means)), abs_tol=1e-6)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.integers(1, 5))
def test_equal_responses_to_a_prompt_add_no_certainty(means: list[float], copies: int) -> None:
    once, often = average_at_k([[one] for one in means]), average_at_k([[one] * copies for one in means])
    assert once.error is not None
    assert often.error is not None
    assert isclose(once.error, often.error, abs_tol=1e-9)


def test_a_sum_of_weights_that_floating_point_rounds_down_passes() -> None:
    assert sum([0.6, 0.3, 0.1]) < 1
    assert passes(0.6 + 0.3 + 0.1)
    assert not passes(0.999)
    assert passes(0.5, 0.5)


@pytest.mark.parametrize(("responses", "ks"), [(1, (1,)), (3, (1, 2, 3)), (4, (1, 2, 4)), (10, (1, 2, 4, 8, 10))])
def test_which_k_are_reported(responses: int, ks: tuple[int, ...]) -> None:
    assert default_ks(responses) == ks
