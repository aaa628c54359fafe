"""Packing: the activities of many rows in a bounded number of intervals, with the exact seconds of each activity.

A replica of episodes may change between generation and a wait for environments with every turn. Intervals that follow
one another without a gap are packed: of several, one of each name is kept, as long as all of that name together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rljob_runtime.timeline.record import Interval

WINDOW = 4
"""Intervals that are packed together."""
LEAST = 4
"""Intervals that a row keeps, however many rows there are."""
MOST_OF_ROW = 8
"""Times the limit of a row that it may have because of gaps."""
PARTS = "parts"
"""Argument of a packed interval: how many intervals it stands for."""


def packed(intervals: Sequence[Interval], most: int) -> list[Interval]:
    """Return at most `most` intervals of a row, or more where they have gaps.

    `intervals`: in order, without overlap, each with an end. The seconds of each name stay, and so do the times at
    which something, whatever it is, begins or ends beside a gap.
    """
    found = list(intervals)
    while len(found) > most:
        shorter: list[Interval] = []
        place = 0
        while place < len(found):
            end = place + 1
            while end < len(found) and end < place + WINDOW and found[end].since == found[end - 1].until:
                end += 1
            shorter += _by_name(found[place:end])
            place = end
        if len(shorter) == len(found):
            break
        found = shorter
    return found


def _by_name(window: Sequence[Interval]) -> list[Interval]:
    """Return an interval of each name for some that follow one another without a gap."""
    by_name: dict[str, list[Interval]] = {}
    for one in window:
        by_name.setdefault(one.name, []).append(one)
    if len(by_name) == len(window):
        return list(window)
    begin, last = window[0].since, window[-1].until
    made: list[Interval] = []
    for same in by_name.values():
        end = begin + sum((one.until or one.since) - one.since for one in same)
        parts = sum(one.args.get(PARTS, 1) for one in same)
        args = same[0].args if parts == 1 else {**same[0].args, PARTS: parts}
        made.append(replace(same[0], since=begin, until=end, args=args))
        begin = end
    # Sums of floats are not exact, and the next interval begins where this one ends.
    made[-1] = replace(made[-1], until=last)
    return made


class PackedRows:
    """Activities by row: about `most` intervals, or `LEAST` a row where there are many rows."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: dict[str, list[Interval]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, interval: Interval) -> bool:
        """Add the next interval of a row. Returns False where gaps keep too many of its intervals apart."""
        row = self._rows.setdefault(interval.row, [])
        limit = self._limit()
        if len(row) >= MOST_OF_ROW * limit:
            return False
        row.append(interval)
        self._count += 1
        if len(row) > 2 * limit:
            # Twice the limit: packing each time would cost its length with each interval.
            self._rows[interval.row] = shorter = packed(row, limit)
            self._count += len(shorter) - len(row)
        return True

    def intervals(self) -> list[Interval]:
        """Return the packed intervals of all rows."""
        limit = self._limit()
        return [one for row in self._rows.values() for one in packed(row, limit)]

    def clear(self) -> None:
        """Begin again."""
        self._rows, self._count = {}, 0

    def _limit(self) -> int:
        return max(LEAST, self._most // max(1, len(self._rows)))
