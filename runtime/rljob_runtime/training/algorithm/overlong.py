"""Overlong responses: the soft penalty before the limit (DAPO §3.4).

A reward that only falls at the limit punishes long reasoning without a warning. The penalty falls linearly from 0 to -1
over the last tokens before the limit.
"""

from __future__ import annotations


def overlong_penalty(length: int, limit: int, window: int | None) -> float:
    """Return the penalty of a response of `length` tokens, from -1 to 0.

    It is 0 up to `limit - window` tokens and -1 at `limit` tokens. Without a window it is 0.

    >>> [overlong_penalty(length, limit=100, window=20) for length in (80, 90, 100, 200)]
    [0.0, -0.5, -1.0, -1.0]
    """
    if window is None:
        return 0.0
    return max(-1.0, min(0.0, (limit - window - length) / window))
