"""Share, patience and slowness of gradient calls, each as a table."""

from __future__ import annotations

import pytest

from rljob_runtime.scheduling.lending.contributions import (
    CALL_SECONDS,
    FAILED_FACTOR,
    groups_for_call,
    patience,
    seconds_of_failed_call,
)


@pytest.mark.parametrize(
    ("tokens", "workers", "most", "seconds", "expected"),
    [
        ([], 1, 100, None, 0),
        ([500], 1, 100, None, 1),
        ([40, 40, 40], 1, 100, None, 2),
        ([100] * 4, 2, 1000, None, 2),
        ([100] * 5, 2, 1000, None, 2),
        ([100] * 4, 1, 1000, CALL_SECONDS / 200, 2),
        ([100] * 4, 1, 1000, CALL_SECONDS, 1),
    ],
    ids=["none wait", "one at least", "bounded", "fair share", "share within groups", "bounded time", "slow"],
)
def test_a_call_computes_a_fair_and_bounded_share(
    tokens: list[int], workers: int, most: int, seconds: float | None, expected: int
) -> None:
    assert groups_for_call(tokens, workers, most, seconds) == expected


@pytest.mark.parametrize(("tokens", "seconds", "expected"), [(100, None, None), (0, 0.5, 1.0), (100, 0.5, 101.0)])
def test_workers_have_twice_the_trainers_time(tokens: int, seconds: float | None, expected: float | None) -> None:
    assert patience(tokens, seconds) == expected


@pytest.mark.parametrize(
    ("waited", "seconds", "expected"),
    [(3.0, 0.1, 3.0 * FAILED_FACTOR), (0.0, 0.1, 1.0 * FAILED_FACTOR), (0.5, None, 0.5 * FAILED_FACTOR)],
    ids=["as long as it was waited for", "as usual at least", "not measured before"],
)
def test_a_failed_call_counts_as_slow(waited: float, seconds: float | None, expected: float) -> None:
    assert seconds_of_failed_call(waited, 10, seconds) == pytest.approx(expected)
