"""Survival: length distribution with stopped responses, by the product-limit estimate (Kaplan and Meier 1958).

A response that was aborted at n tokens is longer than n. Ignoring it, or taking n as its length, underestimates what a
race excludes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log, log1p

HEAD_START = 8
"""A response stopped at n tokens counts as longer than n + n / 8. A race ends with its last kept response, and all
others stop a few tokens before that: without the margin, that one response would represent all of them."""


@dataclass(frozen=True)
class LengthObservation:
    """A response: its length if it `ended`, else the tokens at which it was stopped."""

    tokens: int
    ended: bool = True


class Survival:
    """Share of responses longer than a length. `ended`: complete lengths; `cut`: tokens of stopped or running ones.

    >>> curve = Survival([2, 4], [2])
    >>> curve.longer_than(1), round(curve.longer_than(2), 3), curve.longer_than(4)
    (1.0, 0.667, 0.0)
    """

    def __init__(self, ended: Iterable[int], cut: Iterable[int] = ()) -> None:
        ends, stopped = Counter(ended), Counter(cut)
        cuts: Counter[int] = Counter()
        for length, count in stopped.items():
            cuts[length + length // HEAD_START] += count
        left, share = ends.total() + cuts.total(), 1.0
        self.longest = max((*ends, *stopped), default=0)
        """Longest observation, complete or not."""
        self.lengths: list[int] = []
        """Ascending lengths at which responses ended or were stopped."""
        self._ended: list[float] = []
        """Share that is no longer than each of these."""
        self._areas: list[float] = []
        """Area below the curve up to each of these."""
        area, reached = 0.0, 0
        for length in sorted(ends.keys() | cuts.keys()):
            area += share * (length - reached)
            reached = length
            share *= 1 - ends[length] / left
            left -= ends[length] + cuts[length]
            self.lengths.append(length)
            self._ended.append(1 - share)
            self._areas.append(area)

    @classmethod
    def of(cls, seen: Sequence[LengthObservation]) -> Survival:
        """Estimate from observations."""
        return cls((one.tokens for one in seen if one.ended), (one.tokens for one in seen if not one.ended))

    def longer_than(self, length: int) -> float:
        """Return the share of responses longer than `length`, 0 to 1."""
        place = bisect_right(self.lengths, length)
        return 1 - self._ended[place - 1] if place else 1.0

    def predicted_longer_than(self, length: float) -> float:
        """Return the same share, extrapolated beyond the last complete length as `predicted_beyond` is.

        >>> curve = Survival([2, 2, 2], [8])
        >>> [round(curve.predicted_longer_than(length), 4) for length in (1, 2, 9, 18)]
        [1.0, 0.25, 0.25, 0.0625]
        """
        if not self.lengths or length <= self.lengths[-1]:
            return self.longer_than(floor(length))
        last = 1 - self._ended[-1]
        return last ** (length / self.lengths[-1]) if 0 < last < 1 else last

    def mean_up_to(self, most: float) -> float:
        """Return the mean length with lengths above `most` counted as `most`: the area below the curve.

        >>> Survival([2, 4], [2]).mean_up_to(3)
        2.666...
        """
        place = bisect_right(self.lengths, most)
        if not place:
            return most
        return self._areas[place - 1] + (most - self.lengths[place - 1]) * (1 - self._ended[place - 1])

    def observed_beyond(self, reached: int, share: float) -> int | None:
        """Return the quantile `share` (0 to 1) among the responses longer than `reached`.

        None if it exceeds all complete ones."""
        place = bisect_right(self._ended, 1 - self.longer_than(reached) * (1 - share))
        return self.lengths[place] if place < len(self.lengths) else None

    def predicted_beyond(self, reached: int, share: float) -> int | None:
        """Return the same quantile, extrapolated if it exceeds all complete lengths.

        The extrapolation is the exponential through the curve's last point (Brown, Hollander and Korwar 1974). None
        without one: if all responses ended, or none did.

        >>> curve = Survival([2, 2, 2], [8])
        >>> curve.predicted_beyond(2, 0.5), curve.predicted_beyond(9, 0.5), Survival([2]).predicted_beyond(2, 0.5)
        (14, 14, None)
        """
        if (length := self.observed_beyond(reached, share)) is not None:
            return length
        if not self.lengths or not 0 < (last := 1 - self._ended[-1]) < 1:
            return None
        per_token = log(last) / self.lengths[-1]
        return ceil(max(reached, log(self.longer_than(reached)) / per_token) + log1p(-share) / per_token)

    def beyond(self, reached: int, share: float) -> int:
        """Return the same quantile, at most the longest observation: a lower bound.

        >>> [Survival([2, 4, 8], [2]).beyond(2, share) for share in (0.4, 0.6)]
        [4, 8]
        """
        return max(reached + 1, self.observed_beyond(reached, share) or self.longest)


def mean_length(ended: Iterable[int], cut: Iterable[int]) -> float:
    """Return the mean length in tokens of `ended` and `cut` responses; 0 without any.

    No length beyond the longest observation is assumed, so this is a lower bound if the longest was cut.

    >>> mean_length([2, 4], []), mean_length([2, 4], [0, 0]), mean_length([2, 4], [2])
    (3.0, 3.0, 3.333)
    """
    curve = Survival(ended, cut)
    return round(curve.mean_up_to(curve.longest), 3)
