"""Episode rows: what the timeline shows of a round's episodes, in a bounded number of intervals.

Of each environment: how many open episodes were in the model, outside of it, and without a runner. Of the slowest
episodes that were trained on: when they were in the model, when tools ran, and when they were outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

from rljob_runtime.coordinator.episodes.attempt import Attempt
from rljob_runtime.scheduling.episodes.levels import Levels
from rljob_runtime.scheduling.episodes.times import Place, attempt_parts, with_tools
from rljob_runtime.timeline.packing import packed
from rljob_runtime.timeline.record import LEVELS, Interval

SLOWEST = 8
"""Episodes of a round that have rows of their own."""
MOST_PARTS = 64
"""Intervals of one of them. More parts are packed."""
MOST_SAMPLES = 64
"""Samples of an environment in a round."""
SAMPLE_SECONDS = 1.0


def level_intervals(levels: Levels, to_loop: float) -> list[Interval]:
    """Return the samples since the last call as moments. `to_loop`: seconds from the samples' clock to the loop's."""
    return [
        Interval(
            f"episodes {name}/open",
            LEVELS,
            at + to_loop,
            None,
            {Place.MODEL: level.model, Place.OUTSIDE: level.outside, "waiting for a runner": level.waiting},
        )
        for name, samples in levels.take().items()
        for at, level in samples
    ]


def slowest_intervals(trained: Iterable[Attempt], to_loop: float) -> list[Interval]:
    """Return the parts of the attempts that took longest, a row for each. `to_loop`: see `level_intervals`."""
    found: list[Interval] = []
    ended = (one for one in trained if one.ended_at is not None)
    slowest = nlargest(SLOWEST, ended, lambda one: one.seconds)
    for number, attempt in enumerate((one for one in slowest if one.times is not None), 1):
        row = f"episodes {attempt.environment}/slowest {number}"
        args = {"response": str(attempt.key), "attempt": attempt.id.attempt, "turns": len(attempt.recorded)}
        assert attempt.ended_at is not None
        parts = attempt_parts(attempt.began, attempt.ended_at, attempt.spans.values(), attempt.pauses)
        whole = [
            Interval(row, place, since + to_loop, until + to_loop, args)
            for place, since, until in with_tools(parts, attempt.tools)
        ]
        found += packed(whole, MOST_PARTS)
    return found
