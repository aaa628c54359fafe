"""Convert: recorded intervals as trace events.

Intervals of a row may overlap, because a machine may join again while a call to its predecessor ends. A thread of a
trace shows nested spans only, so overlapping ones get a second thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rljob_runtime.timeline.record import LEVELS, Interval, Record
from rljob_runtime.timeline.trace_events import TraceEvents

FIRST = ("coordinator", "trainer")
"""Machines that are shown above all others."""


def trace_of(records: Sequence[Record]) -> TraceEvents:
    """Return the trace of a job. Its time is 0 at the first interval."""
    intervals = [one for record in records for one in record.intervals]
    start = min((one.since for one in intervals), default=0.0)
    trace = TraceEvents()
    rows: dict[str, list[Interval]] = {}
    for one in intervals:
        rows.setdefault(one.row, []).append(one)
    for row in sorted(rows, key=_order):
        for number, thread in enumerate(threads(rows[row]), 1):
            name = row if number == 1 else f"{row if '/' in row else f'{row}/{row}'} ({number})"
            for one in thread:
                if one.until is None and one.name == LEVELS:
                    trace.count(row, row.partition("/")[0], one.since - start, **one.args)
                elif one.until is None:
                    trace.instant(name, one.name, one.since - start, **one.args)
                else:
                    trace.span(name, one.name, one.since - start, one.until - start, **one.args)
    return trace


def threads(intervals: Iterable[Interval]) -> list[list[Interval]]:
    """Distribute intervals over as few threads as possible, so that no two of a thread overlap.

    Each thread is in order of time. Moments are in the first one."""
    found: list[list[Interval]] = [[]]
    ends: list[float] = [float("-inf")]
    for one in sorted(intervals, key=lambda one: (one.since, one.until or one.since)):
        if one.until is None:
            found[0].append(one)
            continue
        free = next((place for place, end in enumerate(ends) if end <= one.since), None)
        if free is None:
            free = len(ends)
            found.append([])
            ends.append(0.0)
        found[free].append(one)
        ends[free] = one.until
    return found


def _order(row: str) -> tuple[int, str]:
    machine = row.partition("/")[0]
    return FIRST.index(machine) if machine in FIRST else len(FIRST), row
