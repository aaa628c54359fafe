"""Percentile: the least value that a share of measured values does not exceed."""

from __future__ import annotations

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], share: float) -> float:
    """Return the least value that at least this share of the values does not exceed.

    Raises `ValueError` if there are no values.

    >>> percentile([3.0, 1.0, 2.0], 0.99), percentile(range(200), 0.99)
    (3.0, 197)
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values have no percentile")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
