"""Percentiles of the benchmarks."""

from __future__ import annotations

import pytest

from rljob_bench.lib.percentile import percentile


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentiles_are_values_that_occurred(share: float, wanted: int) -> None:
    assert percentile(range(100, 0, -1), share) == wanted
    assert percentile([7.0], share) == 7.0


def test_a_percentile_is_a_value_that_enough_do_not_exceed() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile(range(1, 201), 0.99) == 198
