"""Sampling plan: few measurement points over batch × context, logarithmically spaced (PAT §4.2, sparse sampling).

Only loads that the KV cache holds are sampled (PAT's B·L ≤ Tcap). The order matters: the corners first, then points
that halve the widest gaps, so that at any time the measured points span the complete region.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LEAST_CONTEXT = 16
SHORT_CONTEXT = 512
"""Below it contexts are sampled twice as densely: latency is least linear there (PAT §4.2)."""
MOST_SHARE = 0.9
"""Share of the KV cache that a point may fill: measured sequences must not be preempted."""


@dataclass(frozen=True, order=True)
class Point:
    """A load: `batch` sequences with `context` tokens each in the KV cache when decoding starts."""

    batch: int
    context: int


def sampling_plan(most_batch: int, most_context: int, kv_tokens: int, steps: int) -> tuple[Point, ...]:
    """Return the points in measurement order, each followed by `steps` decode steps of its batch.

    Raises `ValueError` if the engine holds fewer than two sizes of batch or context, which a fit needs.

    >>> [(point.batch, point.context) for point in sampling_plan(4, 64, 10_000, 8)]
    [(1, 16), (1, 64), (4, 16), (4, 64), (1, 32), (2, 16), (2, 32), (2, 64), (4, 32)]
    """
    room = int(MOST_SHARE * kv_tokens)
    levels: dict[Point, int] = {}
    widest = min(most_batch, room // (LEAST_CONTEXT + steps))
    for batch, level in _refined(_spaced(1, widest, lambda batch: 2)):
        longest = min(most_context, room // batch - steps)
        for context, finer in _refined(_spaced(LEAST_CONTEXT, longest, lambda one: 2 if one < SHORT_CONTEXT else 4)):
            levels[Point(batch, context)] = max(level, finer)
    if len({point.batch for point in levels}) < 2 or len({point.context for point in levels}) < 2:
        raise ValueError(
            f"at most {most_batch} sequences of at most {most_context} tokens in a KV cache of {kv_tokens}: two sizes "
            f"of batch, and two contexts of {LEAST_CONTEXT} tokens or more, would be right"
        )
    return tuple(sorted(levels, key=lambda point: (levels[point], point)))


def _spaced(least: int, most: int, step: Callable[[int], int]) -> list[int]:
    """Return values from the least to the most, spaced by factors, both included."""
    if most < least:
        return []
    values = [least]
    while values[-1] * step(values[-1]) <= most:
        values.append(values[-1] * step(values[-1]))
    # The last gap is at least half a factor of two wide.
    if 2 * most >= 3 * values[-1]:
        values.append(most)
    elif len(values) > 1:
        values[-1] = most
    return values


def _refined(values: list[int]) -> list[tuple[int, int]]:
    """Return each value with its level: 0 for the ends, then by halving.

    >>> _refined([1, 2, 4, 8, 16])
    [(1, 0), (16, 0), (4, 1), (2, 2), (8, 2)]
    """
    found, level = dict.fromkeys([0, len(values) - 1] if values else [], 0), 0
    gaps = [(0, len(values) - 1)]
    while gaps := [gap for gap in gaps if gap[1] - gap[0] > 1]:
        level += 1
        middles = [(low + high) // 2 for low, high in gaps]
        found |= dict.fromkeys(middles, level)
        gaps = [
            part for (low, high), middle in zip(gaps, middles, strict=True) for part in ((low, middle), (middle, high))
        ]
    return [(values[place], level) for place, level in found.items()]
