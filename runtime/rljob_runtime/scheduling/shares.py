"""Shares: which prompt source the next prompt comes from, so that each has its share after any number of prompts.

After n prompts, the count of a source differs from n times its share by less than 1. To give the next prompt to the
source that is most behind does not hold this bound for three sources or more. The sequence is therefore a schedule of
unit jobs: the j-th prompt of a source may not come before its share allows it, must come before its share is missed by
1, and the earliest deadline goes first. Such windows always have a schedule, and earliest deadline first finds it
(proportionate fairness, Baruah et al. 1996). The state is one count for each source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import lcm

from rljob_api.spec.training import DataSpec
from rljob_runtime.protocols.trajectory import Cursor, SourceCursor

ALONE = ""
"""Name of the only source of a job without named sources."""


@dataclass(frozen=True)
class Shares:
    """The sources of a job, with their weights above 0. `weights`: as written, by name; any scale."""

    weights: Mapping[str, Fraction]

    @classmethod
    def of(cls, weights: Mapping[str, float]) -> Shares:
        """Return the shares of these weights, read as the decimals that they are written as."""
        return cls({name: Fraction(repr(weight)) for name, weight in weights.items()})

    @property
    def named(self) -> tuple[str, ...]:
        """Names of the sources; empty for a job without named ones."""
        return tuple(name for name in self.weights if name)

    @property
    def total(self) -> Fraction:
        """Sum of the weights."""
        return sum(self.weights.values(), Fraction(0))

    def sequence(self, counts: Mapping[str, int], number: int) -> tuple[str, ...]:
        """Return the sources of the next `number` prompts, after `counts` prompts of each.

        >>> Shares.of({"words": 3, "sums": 1}).sequence({}, 8)
        ('words', 'words', 'words', 'sums', 'words', 'words', 'words', 'sums')
        """
        if len(self.weights) == 1:
            return tuple(self.weights) * number
        names, weights = tuple(self.weights), self._whole
        total, taken = sum(weights), [counts.get(name, 0) for name in names]
        # Windows of each source's next prompt: those that are not open by their first place, open ones by their last.
        closed = [(taken[source] * total // weight + 1, source) for source, weight in enumerate(weights)]
        heapify(closed)
        drawn, found = sum(counts.values()), []
        opened: list[tuple[int, int]] = []
        for now in range(drawn + 1, drawn + number + 1):
            while closed and closed[0][0] <= now:
                source = heappop(closed)[1]
                heappush(opened, (-(-(taken[source] + 1) * total // weights[source]), source))
            source = heappop(opened)[1]
            taken[source] += 1
            heappush(closed, (taken[source] * total // weights[source] + 1, source))
            found.append(names[source])
        return tuple(found)

    def least(self, counts: Mapping[str, int], number: int) -> dict[str, int]:
        """Return how many of the next `number` prompts come from each source at least."""
        end = sum(counts.values()) + number
        return {
            name: max(0, int(end * weight / self.total) - counts.get(name, 0)) for name, weight in self.weights.items()
        }

    def counts(self, cursor: Cursor) -> dict[str, int]:
        """Return the counts of a cursor, by source. Counts of other weights do not hold: the shares begin again."""
        if {source.name: source.weight for source in cursor.sources} != self._written:
            return dict.fromkeys(self.weights, 0)
        return {source.name: source.allotted for source in cursor.sources}

    def with_counts(self, cursor: Cursor, counts: Mapping[str, int]) -> Cursor:
        """Return the cursor with these counts, and the weights that they are of."""
        if list(self.weights) == [ALONE]:
            return cursor
        known = {source.name: source for source in cursor.sources}
        sources = (
            replace(known.get(name, SourceCursor(name)), allotted=counts.get(name, 0), weight=weight)
            for name, weight in self._written.items()
        )
        return replace(cursor, sources=tuple(sources))

    def given_back(self, cursor: Cursor, source: str) -> Cursor:
        """Return the cursor with one prompt less of a source: the next one takes its place."""
        counts = self.counts(cursor)
        return self.with_counts(cursor, counts | {source: max(0, counts[source] - 1)})

    def replaces(self, source: str, filtered: int, prompts: int, factor: float) -> bool:
        """Return whether another prompt of a source takes the place of a filtered one.

        It does for the first `factor` × its share of `prompts` in a row; `filtered` of the row were before this one. A
        source without a bound would take every place once all of its groups are filtered.

        >>> shares = Shares.of({"words": 3, "sums": 1})
        >>> [shares.replaces("sums", filtered, prompts=4, factor=2) for filtered in range(4)]
        [True, True, False, False]
        """
        return filtered * self.total < Fraction(repr(float(factor))) * prompts * self.weights[source]

    @cached_property
    def _whole(self) -> tuple[int, ...]:
        """The weights as integers of the same ratio, in their order: integers are compared faster than fractions."""
        scale = lcm(*(weight.denominator for weight in self.weights.values()))
        return tuple(int(weight * scale) for weight in self.weights.values())

    @property
    def _written(self) -> dict[str, str]:
        return {name: str(weight) for name, weight in self.weights.items()}


ONE_SOURCE = Shares({ALONE: Fraction(1)})
"""Shares of a job without named sources."""


def shares_of(data: DataSpec) -> Shares:
    """Return the shares of a job's prompt sources."""
    if data.sources is None:
        return ONE_SOURCE
    return Shares.of({source.name: source.share for source in data.sources})


def allot(shares: Shares, cursor: Cursor, number: int) -> tuple[tuple[str, ...], Cursor]:
    """Return the sources of the next `number` prompts, and the cursor that has counted them."""
    counts = shares.counts(cursor)
    names = shares.sequence(counts, number)
    return names, shares.with_counts(cursor, Counter(counts) + Counter(names))


def by_source(names: Sequence[str]) -> dict[str, int]:
    """Count names, in the order of their first."""
    return dict(Counter(names))
