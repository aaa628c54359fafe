"""How long responses are when some were stopped before their end: the product-limit estimate (Kaplan and Meier 1958).

A response that was aborted at n tokens says only that it is longer than n. Leaving it out, or taking n for its length,
makes a race look fairer than it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def mean_length(ended: Iterable[int], cut: Iterable[int]) -> float:
    """Mean length in tokens of responses of which some `ended` at these lengths and others were `cut` there. No length
    beyond the longest that was seen is assumed, so it is still a lower bound when the longest was cut. 0 without any.

    >>> mean_length([2, 4], []), mean_length([2, 4], [0, 0]), mean_length([2, 4], [2])
    (3.0, 3.0, 3.333)
    """
    ends, cuts = Counter(ended), Counter(cut)
    left, surviving, mean, reached = ends.total() + cuts.total(), 1.0, 0.0, 0
    for length in sorted(ends.keys() | cuts.keys()):
        mean += surviving * (length - reached)
        surviving *= 1 - ends[length] / left
        left -= ends[length] + cuts[length]
        reached = length
    return round(mean, 3)
