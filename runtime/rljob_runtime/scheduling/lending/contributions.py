"""Contributions: how many groups a gradient call computes, how long it may take, and how slow a failed one counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

CALL_SECONDS = 10.0
"""Target duration of a call, by the measured speed."""
PATIENCE_FACTOR = 2.0
PATIENCE_SECONDS = 1.0
FAILED_FACTOR = 10.0
"""A call that failed or was cancelled counts as this many times its duration."""


def groups_for_call(tokens: Sequence[int], workers: int, most: int, seconds: float | None) -> int:
    """Return how many of the waiting groups, with these loss tokens each, the next call computes; at least one.

    All `workers` get an equal share, so that the last calls end together. A call has `most` tokens at most. If a token
    takes `seconds`, the call takes about `CALL_SECONDS` at most.

    >>> groups_for_call([100, 100, 100, 100], 2, 1000, None), groups_for_call([100, 100, 100, 100], 1, 1000, 0.05)
    (2, 2)
    """
    sums = list(accumulate(tokens))
    if not sums:
        return 0
    limit = min(most, -(-sums[-1] // workers), CALL_SECONDS / seconds if seconds else most)
    return max(1, sum(total <= limit for total in sums))


def patience(tokens: int, seconds: float | None) -> float | None:
    """Return how long an idle trainer waits for workers with `tokens` assigned loss tokens.

    `seconds`: the trainer's time for a token; None if unknown, then it waits without a bound.

    >>> patience(100, 0.5), patience(100, None)
    (101.0, None)
    """
    return None if seconds is None else PATIENCE_SECONDS + PATIENCE_FACTOR * seconds * tokens


def seconds_of_failed_call(waited: float, tokens: int, seconds: float | None) -> float:
    """Return how long a failed call counts as, after `waited` seconds.

    A call that fails immediately counts as the usual duration at least. The large value prevents the next loan for a
    while.

    >>> seconds_of_failed_call(3.0, 10, 0.1), seconds_of_failed_call(0.0, 10, 0.1)
    (30.0, 10.0)
    >>> seconds_of_failed_call(0.0, 10, None)
    0.0
    """
    return FAILED_FACTOR * max(waited, tokens * (seconds or 0.0))
