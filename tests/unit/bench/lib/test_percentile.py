"""Percentiles of the benchmarks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_bench.lib.percentile import percentile


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentiles_are_values_that_occurred(share: float, wanted: int) -> None:
    assert percentile(range(100, 0, -1), share) == wanted
    assert percentile([7.0], share) == 7.0


def test_a_percentile_is_a_value_that_enough_do_not_exceed() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile(range(1, 201), 0.99) == 198


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_one_of_the_values_that_enough_do_not_exceed(values, share) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 0.5)
