"""Percentile of measured values."""

from __future__ import annotations

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], share: float) -> float:
    """Return the least value that at least this share of the values does not exceed.

    >>> percentile([3.0, 1.0, 2.0], 0.99), percentile(range(200), 0.99)
    (3.0, 197)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
