"""How long responses are when some were stopped before their end: the product-limit estimate (Kaplan and Meier 1958).

A response that was aborted at n tokens says only that it is longer than n. Leaving it out, or taking n for its length,
makes a race look fairer than it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, log, log1p

HEAD_START = 8
"""What was stopped at n tokens is taken to be longer than n + n / 8. A race is over with the last response that counts,
and everybody else who ran was stopped a few tokens before: without it, that one would stand for all of them."""


@dataclass(frozen=True)
class LengthObservation:
    """A response: `tokens` is its length if it `ended`, else it was stopped there."""

    tokens: int
    ended: bool = True


class Survival:
    """The share of responses that are longer than a length. `ended`: lengths of those that came to their end; `cut`:
    tokens of those that were stopped, or still run.

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
        """Of all that were seen, as far as they came."""
        self.lengths: list[int] = []
        """At which responses ended, or were stopped; rising."""
        self._ended: list[float] = []
        """Share that is no longer than each of these."""
        self._areas: list[float] = []
        """Below the curve, up to each of these."""
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
        """That of these responses."""
        return cls((one.tokens for one in seen if one.ended), (one.tokens for one in seen if not one.ended))

    def longer_than(self, length: int) -> float:
        """Share of the responses, 0 to 1."""
        place = bisect_right(self.lengths, length)
        return 1 - self._ended[place - 1] if place else 1.0

    def mean_up_to(self, most: float) -> float:
        """Mean length, what is longer than `most` tokens counting as that: the area below the curve.

        >>> Survival([2, 4], [2]).mean_up_to(3)
        2.666...
        """
        place = bisect_right(self.lengths, most)
        if not place:
            return most
        return self._areas[place - 1] + (most - self.lengths[place - 1]) * (1 - self._ended[place - 1])

    def observed_beyond(self, reached: int, share: float) -> int | None:
        """The length that `share` (0 to 1) of the responses that reach beyond `reached` do not exceed; None where it is
        longer than any that was seen to end."""
        place = bisect_right(self._ended, 1 - self.longer_than(reached) * (1 - share))
        return self.lengths[place] if place < len(self.lengths) else None

    def predicted_beyond(self, reached: int, share: float) -> int | None:
        """The same; what is longer than anything seen to end is drawn from the exponential that has this curve's last
        share at its last length (Brown, Hollander and Korwar 1974). None where there is none: all that were seen have
        ended, or none has.

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
        """The same, where what is longer than anything seen counts as just that long: a lower bound.

        >>> [Survival([2, 4, 8], [2]).beyond(2, share) for share in (0.4, 0.6)]
        [4, 8]
        """
        return max(reached + 1, self.observed_beyond(reached, share) or self.longest)


def mean_length(ended: Iterable[int], cut: Iterable[int]) -> float:
    """Mean length in tokens of responses of which some `ended` at these lengths and others were `cut` there. No length
    beyond the longest that was seen is assumed, so it is still a lower bound when the longest was cut. 0 without any.

    >>> mean_length([2, 4], []), mean_length([2, 4], [0, 0]), mean_length([2, 4], [2])
    (3.0, 3.0, 3.333)
    """
    curve = Survival(ended, cut)
    return round(curve.mean_up_to(curve.longest), 3)
