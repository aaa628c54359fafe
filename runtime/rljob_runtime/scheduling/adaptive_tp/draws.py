"""Draws: outcomes of a round in progress, each with one length for every running response.

Quantiles are spread evenly over all responses, as for loans: every draw has the expected number of long responses, and
chance decides which they are. Alternatives are compared on the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, Running
from rljob_runtime.scheduling.lending.policy import ExpectedLengths


@dataclass(frozen=True)
class Draw:
    """Steps that each response has left if it runs to its end: `here` by replica, `elsewhere` by engine."""

    here: tuple[tuple[int, ...], ...]
    elsewhere: tuple[tuple[int, ...], ...] = ()


def draws_of(snapshot: MachineSnapshot, count: int) -> tuple[Draw, ...]:
    """Return `count` draws; the same snapshot gives the same ones."""
    lengths = ExpectedLengths(snapshot.lengths, snapshot.max_tokens)
    return tuple(_draw(snapshot, lengths, Random(number)) for number in range(count))


def _draw(snapshot: MachineSnapshot, lengths: ExpectedLengths, random: Random) -> Draw:
    engines = [*snapshot.replicas, *(engine.running for engine in snapshot.elsewhere)]
    total = sum(map(len, engines))
    shares = [(place + random.random()) / total for place in range(total)]
    random.shuffle(shares)
    ends = [
        tuple(max(1, lengths.at(response.generated, shares.pop()) - response.generated) for response in engine)
        for engine in engines
    ]
    here = len(snapshot.replicas)
    return Draw(tuple(ends[:here]), tuple(ends[here:]))


def stops_in_lockstep(snapshot: MachineSnapshot, draw: Draw) -> list[float]:
    """Return the steps after which each response of the machine ends or loses its place, if all engines are alike."""
    engines = [*snapshot.replicas, *(engine.running for engine in snapshot.elsewhere)]
    lefts = [*draw.here, *draw.elsewhere]
    pairs: list[tuple[Running, int]] = [
        pair for running, left in zip(engines, lefts, strict=True) for pair in zip(running, left, strict=True)
    ]
    if not snapshot.groups:
        return [float(left) for _, left in pairs[: snapshot.count]]
    by_group: list[list[int]] = [[] for _ in snapshot.groups]
    for response, left in pairs:
        by_group[response.group].append(left)
    closes = [_close(group.missing, left) for group, left in zip(snapshot.groups, by_group, strict=True)]
    complete = sorted(closes)
    end = complete[min(snapshot.wanted, len(complete)) - 1] if snapshot.wanted else math.inf
    return [min(float(left), closes[response.group], end) for response, left in pairs[: snapshot.count]]


def _close(missing: int, left: Sequence[int]) -> float:
    """Return the step at which a group's last place is taken; never, if it has more places than responses."""
    if missing <= 0:
        return 0.0
    return float(sorted(left)[missing - 1]) if missing <= len(left) else math.inf
