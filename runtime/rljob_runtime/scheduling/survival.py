"""How long responses are when some were stopped before their end: the product-limit estimate (Kaplan and Meier 1958).

A response that was aborted at n tokens says only that it is longer than n. Leaving it out, or taking n for its length,
makes a race look fairer than it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable


class Survival:
    """The share of responses that are longer than a length. `ended`: lengths of those that came to their end; `cut`:
    tokens of those that were stopped.

    >>> curve = Survival([2, 4], [2])
    >>> curve.longer_than(1), round(curve.longer_than(2), 3), curve.longer_than(4)
    (1.0, 0.667, 0.0)
    """

    def __init__(self, ended: Iterable[int], cut: Iterable[int]) -> None:
        ends, cuts = Counter(ended), Counter(cut)
        left, share = ends.total() + cuts.total(), 1.0
        self.lengths: list[int] = []
        """At which responses ended, or were stopped; rising."""
        self._ended: list[float] = []
        """Share that is no longer than each of these."""
        for length in sorted(ends.keys() | cuts.keys()):
            share *= 1 - ends[length] / left
            left -= ends[length] + cuts[length]
            self.lengths.append(length)
            self._ended.append(1 - share)

    def longer_than(self, length: int) -> float:
        """Share of the responses, 0 to 1."""
        place = bisect_right(self.lengths, length)
        return 1 - self._ended[place - 1] if place else 1.0

    def beyond(self, reached: int, share: float) -> int:
        """The length that `share` (0 to 1) of the responses that reach beyond `reached` do not exceed. What is longer
        than anything seen counts as just that long: a lower bound.

        >>> [Survival([2, 4, 8], [2]).beyond(2, share) for share in (0.4, 0.6)]
        [4, 8]
        """
        longer = self.longer_than(reached)
        place = bisect_right(self._ended, 1 - longer * (1 - share))
        longest = self.lengths[-1] if self.lengths else 0
        return max(reached + 1, self.lengths[place] if place < len(self.lengths) else longest)


def mean_length(ended: Iterable[int], cut: Iterable[int]) -> float:
    """Mean length in tokens of responses of which some `ended` at these lengths and others were `cut` there. No length
    beyond the longest that was seen is assumed, so it is still a lower bound when the longest was cut. 0 without any.

    >>> mean_length([2, 4], []), mean_length([2, 4], [0, 0]), mean_length([2, 4], [2])
    (3.0, 3.0, 3.333)
    """
    curve = Survival(ended, cut)
    mean, reached = 0.0, 0
    for length in curve.lengths:
        mean += curve.longer_than(reached) * (length - reached)
        reached = length
    return round(mean, 3)
