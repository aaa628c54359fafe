"""Packed activities: a bounded number of intervals with the exact seconds of each activity."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.timeline.packing import PARTS, PackedRows, packed
from rljob_runtime.timeline.record import Interval


def row_of(parts: list[tuple[str, int, int]], row: str = "a/replica-0") -> list[Interval]:
    """Intervals from (name, seconds, seconds until the next one)."""
    made, at = [], 0.0
    for name, seconds, gap in parts:
        made.append(Interval(row, name, at, at + seconds, {"round": 1}))
        at += seconds + gap
    return made


def seconds_of(intervals: list[Interval]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in intervals:
        assert one.until is not None
        found[one.name] += one.until - one.since
    return found


def spans(intervals: list[Interval]) -> list[tuple[float, float | None]]:
    """Return from when to when something goes on without a gap."""
    found: list[tuple[float, float | None]] = []
    for one in intervals:
        if found and found[-1][1] == one.since:
            found[-1] = found[-1][0], one.until
        else:
            found.append((one.since, one.until))
    return found


ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.sampled_from([0, 0, 0, 0, 2])), max_size=60)


@given(ROWS, st.integers(4, 12))
def test_the_seconds_of_each_name_stay(parts: list[tuple[str, int, int]], most: int) -> None:
    before = row_of(parts)
    after = packed(before, most)
    assert seconds_of(after) == pytest.approx(seconds_of(before))
    assert spans(after) == spans(before)
    assert all(one.until is not None and one.until <= other.since for one, other in pairwise(after))
    assert sum(one.args.get(PARTS, 1) for one in after) == len(before)


@given(st.integers(0, 300), st.integers(4, 12))
def test_turns_without_a_gap_are_bounded(count: int, most: int) -> None:
    before = row_of([("ab"[place % 2], 1 + place % 3, 0) for place in range(count)])
    assert len(packed(before, most)) <= most


def test_few_intervals_stay_as_they_are() -> None:
    before = row_of([("a", 1, 0), ("b", 2, 0), ("a", 3, 0), ("b", 1, 0)])
    assert packed(before, 4) == before
    assert [(one.name, one.since, one.until, one.args[PARTS]) for one in packed(before, 3)] == [
        ("a", 0, 4, 2),
        ("b", 4, 7, 2),
    ]


def test_many_rows_are_bounded_together() -> None:
    rows = PackedRows(100)
    for turn in range(400):
        for number in range(10):
            row = f"a/replica-{number}"
            rows.add(Interval(row, "ab"[turn % 2], float(turn), float(turn + 1)))
            assert len(rows) <= 300
    found = rows.intervals()
    assert len(found) <= 100
    assert seconds_of(found) == {"a": 2000, "b": 2000}
    rows.clear()
    assert (len(rows), rows.intervals()) == (0, [])
