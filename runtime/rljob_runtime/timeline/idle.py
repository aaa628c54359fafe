"""Idle time: shares of the replicas' time in which they generate nothing, by what they wait for.

Pure: it computes with the intervals of one round. A moment of a replica has one cause at most, so the shares and the
share of work add up to 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from rljob_runtime.timeline.record import Interval

GENERATE, ENVIRONMENTS, LOAD = "generate", "wait for environments", "load"
"""Names of a replica's intervals. In the second one the engine has nothing to compute: all its responses wait."""
BLOCKED, LOAN, REWARDS = "buffer full", "loan", "rewards"
"""Names of intervals: of a replica's `blocked_row`; of a machine's worker; of the rewards."""
TRAINING_PHASE, WEIGHTS_PHASE = "training", "weight sync"
"""Names of the phases of a round."""
JOINED, LOST, LEFT = "MachineJoined", "MachineLost", "MachineLeft"
"""Names of moments of a machine's `machine_row`."""

Spans = list[tuple[float, float]]
"""Disjoint, in order, each with a length."""


@dataclass(frozen=True)
class IdleShares:
    """Shares of the time of all replicas, each from 0 to 1."""

    tail: float
    weights: float
    training: float
    environments: float
    rewards: float


def blocked_row(replica: str) -> str:
    """Return the row of the time in which a replica is blocked by a full buffer."""
    return f"{replica}/buffer"


def machine_row(machine: str) -> str:
    """Return the row of the moments at which a machine joins or leaves the fleet."""
    return f"{machine}/machine"


def idle_shares(
    intervals: Iterable[Interval],
    since: float,
    until: float,
    replicas: Collection[str],
    phases_row: str | None,
) -> IdleShares | None:
    """Return the idle shares between two times; None without any replica or time.

    `replicas` are those at the end. A replica counts while its machine is a member of the fleet, and so do the replicas
    of machines that were lost: see `membership`. `phases_row` is the row of the phases for which all replicas wait;
    None where they generate meanwhile. Causes, in this order: weights (its own load, and the weight sync), training
    (its phase, and a full buffer), environments (all its responses wait for their programs), rewards (no replica has
    a response, and some are being scored), tail (the rest: other replicas generate, or nothing is left).
    """
    intervals = tuple(intervals)
    members = membership(intervals, since, until, replicas)
    all_time = sum(map(length, members.values()))
    if not all_time:
        return None
    found: dict[tuple[str, str], Spans] = {}
    for one in intervals:
        begin, end = max(one.since, since), min(one.until if one.until is not None else one.since, until)
        if begin < end:
            found.setdefault((one.row, one.name), []).append((begin, end))
    holding = union(spans for (_, name), spans in found.items() if name in (GENERATE, ENVIRONMENTS))
    scoring = subtract(union(spans for (_, name), spans in found.items() if name == REWARDS), holding)
    total = dict.fromkeys(("weights", "training", "environments", "rewards", "tail"), 0.0)
    for replica, there in members.items():
        machine = _machine(replica)
        busy = union([found.get((replica, GENERATE), []), found.get((f"{machine}/worker", LOAN), [])])
        causes = {
            "weights": union([found.get((replica, LOAD), []), _phase(found, phases_row, WEIGHTS_PHASE)]),
            "training": union(
                [found.get((blocked_row(replica), BLOCKED), []), _phase(found, phases_row, TRAINING_PHASE)]
            ),
            "environments": union([found.get((replica, ENVIRONMENTS), [])]),
            "rewards": scoring,
            "tail": there,
        }
        idle = subtract(there, busy)
        for cause, spans in causes.items():
            rest = subtract(idle, spans)
            total[cause] += length(idle) - length(rest)
            idle = rest
    return IdleShares(**{cause: min(1.0, max(0.0, seconds / all_time)) for cause, seconds in total.items()})


def membership(
    intervals: Iterable[Interval], since: float, until: float, replicas: Collection[str]
) -> dict[str, Spans]:
    """Return the times between two times in which each replica's machine was a member of the fleet.

    `replicas` are those at the end. Others are known by their intervals: those of a machine that has none at the end
    count until it was lost.
    """
    moments: dict[str, list[tuple[float, bool]]] = {}
    seen: dict[str, None] = dict.fromkeys(replicas)
    present = {_machine(replica) for replica in replicas}
    for one in intervals:
        machine = _machine(one.row)
        if one.row == machine_row(machine) and one.name in (JOINED, LOST, LEFT):
            moments.setdefault(machine, []).append((one.since, one.name == JOINED))
        elif one.name in (GENERATE, ENVIRONMENTS, LOAD) and machine not in present:
            seen[one.row] = None
    return {replica: _between(sorted(moments.get(_machine(replica), [])), since, until) for replica in seen}


def _between(moments: Sequence[tuple[float, bool]], since: float, until: float) -> Spans:
    """Return the times of membership between two times. `moments`: in order, each with whether the machine joins."""
    there = not (moments and moments[0][1])
    begins, spans = since, []
    for at, joins in moments:
        if there and not joins:
            spans.append((begins, min(at, until)))
        elif joins and not there:
            begins = max(at, since)
        there = joins
    if there:
        spans.append((begins, until))
    return [(begin, end) for begin, end in spans if begin < end]


def _machine(row: str) -> str:
    return row.partition("/")[0]


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
