"""Lengths of which some are not known to the end: the estimate of survival."""

from math import ceil, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.round_planner.survival import Survival, mean_length


def test_the_survival_estimate_of_a_textbook():
    """Four ends and two cuts: S is 5/6, 5/6·3/4, 5/6·3/4·2/3, 0 after 1, 3, 4 and 6 tokens."""
    expected = 1 + 5 / 6 * 2 + 5 / 8 * 1 + 5 / 12 * 2
    assert mean_length([1, 3, 4, 6], [2, 6]) == pytest.approx(expected, abs=1e-3)


def test_the_last_winner_tells_nothing_of_responses_stopped_with_it():
    """Of eleven, five ended, the last of them when the six others had a token less."""
    curve = Survival([2, 3, 4, 5, 10], [9] * 6)
    assert [curve.longer_than(length) for length in (9, 10, 99)] == pytest.approx([7 / 11, 6 / 11, 6 / 11])
    assert [curve.observed_beyond(9, share) for share in (0.1, 0.2)] == [10, None]
    assert curve.beyond(9, 0.2) == 10


@given(st.integers(0, 400), st.floats(0, 0.99))
def test_beyond_all_that_was_seen_an_exponential_goes_on_as_it_began(reached, share):
    """Lengths of mean 100, of which none was let beyond 150; the head start of those stopped makes them longer."""
    lengths = [ceil(-100 * log(1 - (place + 0.5) / 1000)) for place in range(1000)]
    curve = Survival([each for each in lengths if each <= 150], [140 for each in lengths if each > 150])
    assert curve.predicted_beyond(reached, share) == pytest.approx(reached - 100 * log(1 - share), abs=3, rel=0.06)


CUTS = st.lists(st.integers(0, 50), min_size=1)


@given(st.lists(st.integers(1, 50)), CUTS, st.integers(0, 80), st.floats(0, 0.99), st.floats(0, 0.99))
def test_more_of_the_longer_ones_end_later_beyond_what_was_seen_too(ended, cut, reached, share, more):
    curve = Survival(ended, cut)
    near, far = (curve.predicted_beyond(reached, each) for each in sorted((share, more)))
    if far is not None:
        assert near is not None
        assert reached <= near <= far
        assert curve.observed_beyond(reached, share) in (None, curve.predicted_beyond(reached, share))


@given(st.lists(st.integers(1, 50), max_size=30), st.lists(st.integers(0, 50), max_size=30), st.integers(0, 60))
def test_the_mean_up_to_a_length_is_the_area_below_the_curve(ended, cut, most):
    curve = Survival(ended, cut)
    assert curve.mean_up_to(most) == pytest.approx(sum(curve.longer_than(length) for length in range(most)))


@given(st.lists(st.integers(1, 50), max_size=30), st.lists(st.integers(0, 50), max_size=30))
def test_cut_lengths_raise_the_estimate_and_never_above_the_longest(ended, cut):
    estimate = mean_length(ended, cut)
    everything = [*ended, *cut]
    assert (sum(everything) / len(everything) if everything else 0) <= estimate + 1e-3
    assert estimate <= max(everything, default=0) + 1e-3
    assert mean_length(ended, []) == pytest.approx(sum(ended) / len(ended) if ended else 0, abs=1e-3)
    assert mean_length(ended, [0] * len(cut)) == pytest.approx(mean_length(ended, []), abs=1e-3)
