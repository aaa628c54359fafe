"""Idle time: shares of the replicas' time in which they generate nothing, by what they wait for.

Pure: it computes with the intervals of one round. A moment of a replica has one cause at most, so the shares and the
share of work add up to 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from rljob_runtime.timeline.record import Interval

GENERATE, LOAD, BLOCKED, LOAN, REWARDS = "generate", "load", "buffer full", "loan", "rewards"
"""Names of intervals: of a replica; of a replica's `BLOCKED_ROW`; of a machine's worker; of the rewards."""
TRAINING_PHASE, WEIGHTS_PHASE = "training", "weight sync"
"""Names of the phases of a round."""

Spans = list[tuple[float, float]]
"""Disjoint, in order, each with a length."""


@dataclass(frozen=True)
class IdleShares:
    """Shares of the time of all replicas, each from 0 to 1."""

    tail: float
    weights: float
    training: float
    rewards: float


def blocked_row(replica: str) -> str:
    """Return the row of the time in which a replica is blocked by a full buffer."""
    return f"{replica}/buffer"


def idle_shares(
    intervals: Iterable[Interval],
    since: float,
    until: float,
    replicas: Collection[str],
    phases_row: str | None,
) -> IdleShares | None:
    """Return the idle shares between two times; None without any replica or time.

    `phases_row` is the row of the phases for which all replicas wait; None where they generate meanwhile. Causes, in
    this order: weights (its own load, and the weight sync), training (its phase, and a full buffer), rewards (no
    replica generates, and responses are being scored), tail (the rest: other replicas generate, or nothing is left).
    """
    if until <= since or not replicas:
        return None
    found: dict[tuple[str, str], Spans] = {}
    for one in intervals:
        begin, end = max(one.since, since), min(one.until if one.until is not None else one.since, until)
        if begin < end:
            found.setdefault((one.row, one.name), []).append((begin, end))
    generating = union(spans for (_, name), spans in found.items() if name == GENERATE)
    scoring = subtract(union(spans for (_, name), spans in found.items() if name == REWARDS), generating)
    total = dict.fromkeys(("weights", "training", "rewards", "tail"), 0.0)
    for replica in replicas:
        machine = replica.partition("/")[0]
        busy = union([found.get((replica, GENERATE), []), found.get((f"{machine}/worker", LOAN), [])])
        causes = {
            "weights": union([found.get((replica, LOAD), []), _phase(found, phases_row, WEIGHTS_PHASE)]),
            "training": union(
                [found.get((blocked_row(replica), BLOCKED), []), _phase(found, phases_row, TRAINING_PHASE)]
            ),
            "rewards": scoring,
            "tail": [(since, until)],
        }
        idle = subtract([(since, until)], busy)
        for cause, spans in causes.items():
            rest = subtract(idle, spans)
            total[cause] += length(idle) - length(rest)
            idle = rest
    all_time = len(replicas) * (until - since)
    return IdleShares(**{cause: min(1.0, max(0.0, seconds / all_time)) for cause, seconds in total.items()})


def _phase(found: dict[tuple[str, str], Spans], row: str | None, name: str) -> Spans:
    return found.get((row, name), []) if row is not None else []


def union(parts: Iterable[Sequence[tuple[float, float]]]) -> Spans:
    """Return the times that are in any of these spans, which may overlap.

    >>> union([[(0.0, 2.0), (5.0, 6.0)], [(1.0, 3.0)]])
    [(0.0, 3.0), (5.0, 6.0)]
    """
    merged: Spans = []
    for begin, end in sorted(chain.from_iterable(parts)):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif begin < end:
            merged.append((begin, end))
    return merged


def subtract(spans: Spans, holes: Spans) -> Spans:
    """Return the times of disjoint spans that are in none of the disjoint holes.

    >>> subtract([(0.0, 5.0), (6.0, 7.0)], [(1.0, 2.0), (4.0, 9.0)])
    [(0.0, 1.0), (2.0, 4.0)]
    """
    left: Spans = []
    first = 0
    for begin, end in spans:
        while first < len(holes) and holes[first][1] <= begin:
            first += 1
        at = begin
        for hole_begin, hole_end in holes[first:]:
            if hole_begin >= end:
                break
            if at < hole_begin:
                left.append((at, hole_begin))
            at = max(at, hole_end)
        if at < end:
            left.append((at, end))
    return left


def length(spans: Spans) -> float:
    """Return the seconds of disjoint spans."""
    return sum(end - begin for begin, end in spans)
