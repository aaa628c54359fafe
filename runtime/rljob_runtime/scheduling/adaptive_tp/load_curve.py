"""Load curve: how many of a machine's responses still run after each further token, and with how much context.

The chance that a response runs after n more tokens is S(g + n) / S(g), with g its tokens so far and S the product-limit
estimate of all lengths, in which stopped and running responses are censored. In a race it is the share of drawn
outcomes in which the response has neither ended nor lost its place. Expected values hide the last response, which
decides when the machine is done, so the curve also has the chance that any response runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from rljob_runtime.scheduling.adaptive_tp.draws import Draw, draws_of, stops_in_lockstep
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot
from rljob_runtime.scheduling.adaptive_tp.switch_costs import Carried

POINTS = 40
"""Points of the grid: the plan costs POINTS x sizes² x switches."""
FIRST_POINT = 16
"""Tokens to the second point; waiting to there is waiting for about one more look."""
BINS = 24
"""Classes of responses with about the same number of tokens."""
RACE_DRAWS = 4


@dataclass(frozen=True)
class Point:
    """The machine after `steps` more tokens of each response: expected values, and the chance that any runs.

    `tokens`: context; `squares`: Σ context²."""

    steps: float
    running: float
    tokens: float
    squares: float
    any_runs: float

    @property
    def carried(self) -> Carried:
        """What a switch at this point carries over, if any response still runs."""
        chance = max(self.any_runs, 1e-9)
        return Carried(self.running / chance, self.tokens / chance, self.squares / chance)


def load_curve(snapshot: MachineSnapshot) -> tuple[Point, ...]:
    """Return the expected curve from now to the last possible token, on a geometric grid."""
    grid = grid_of(snapshot)
    if snapshot.is_race:
        return _raced(snapshot, draws_of(snapshot, RACE_DRAWS), grid)
    classes = _classes(snapshot)
    alive = [_survival(snapshot, alike.generated, grid) for alike in classes]
    return tuple(_point(steps, classes, [shares[place] for shares in alive]) for place, steps in enumerate(grid))


def grid_of(snapshot: MachineSnapshot) -> tuple[int, ...]:
    """Return 0 and steps that grow geometrically, up to the most that a response may have left."""
    most = max(1, snapshot.max_tokens - min(response.generated for response in snapshot.running))
    if most <= FIRST_POINT:
        return (0, most)
    ratio = (most / FIRST_POINT) ** (1 / (POINTS - 2))
    return (0, *sorted({round(FIRST_POINT * ratio**place) for place in range(POINTS - 1)}))


@dataclass(frozen=True)
class _Class:
    """Responses with about the same number of tokens; `generated` and `context` of each."""

    count: int
    generated: int
    context: float


def _classes(snapshot: MachineSnapshot) -> list[_Class]:
    """Return a class for each number of tokens, or `BINS` ranges if there are more numbers."""
    ordered = sorted(snapshot.running, key=lambda response: response.generated)
    alike = [list(members) for _, members in groupby(ordered, key=lambda response: response.generated)]
    if len(alike) > BINS:
        width = math.ceil(len(ordered) / BINS)
        alike = [ordered[start : start + width] for start in range(0, len(ordered), width)]
    return [
        _Class(len(members), members[len(members) // 2].generated, fmean(one.context for one in members))
        for members in alike
    ]


def _survival(snapshot: MachineSnapshot, reached: int, grid: Sequence[int]) -> list[float]:
    now = snapshot.lengths.predicted_longer_than(reached)
    left = snapshot.max_tokens - reached
    if now < 1e-9:  # longer than any known length: nothing but the limit ends it
        return [float(steps < left) for steps in grid]
    return [
        min(1.0, snapshot.lengths.predicted_longer_than(reached + steps) / now) if steps < left else 0.0
        for steps in grid
    ]


def _point(steps: int, classes: Sequence[_Class], alive: Sequence[float]) -> Point:
    running = tokens = squares = none_log = 0.0
    for alike, share in zip(classes, alive, strict=True):
        if share > 0:
            count, context = share * alike.count, alike.context + steps
            running += count
            tokens += count * context
            squares += count * context * context
            none_log += alike.count * math.log1p(-min(share, 1 - 1e-12))
    return Point(steps, running, tokens, squares, -math.expm1(none_log))


def _raced(snapshot: MachineSnapshot, draws: Sequence[Draw], grid: Sequence[int]) -> tuple[Point, ...]:
    stops = [stops_in_lockstep(snapshot, draw) for draw in draws]
    runs = [pair for stop in stops for pair in zip((one.context for one in snapshot.running), stop, strict=True)]
    ends = [max(stop) for stop in stops]
    points = []
    for steps in grid:
        contexts = [context + steps for context, stop in runs if stop > steps]
        points.append(
            Point(
                steps,
                len(contexts) / len(draws),
                sum(contexts) / len(draws),
                sum(context * context for context in contexts) / len(draws),
                sum(end > steps for end in ends) / len(draws),
            )
        )
    return tuple(points)
