"""Switch plan: the sequence of tensor parallel sizes that is predicted to end a machine's responses first.

Backward dynamic programming over the points of a curve: at each point the machine stays, or switches to any size that
holds the responses from there on. Both directions are considered. A step takes as long as on the replica that is done
last. It has the response that ends last, and more than an even share of the others: which of them have ended differs
from replica to replica, and the machine waits for the fullest. Without that, a size with many replicas would look
faster than one with few.

Responses that exceed the cache of their engine, or its places, take turns there. So the plan sees what it costs to stay
in a size that will be full.

PAT's Algorithm 1 compares one step ahead, and its current size by the fullest group with candidates by even shares. The
plan judges all sizes alike, and knows that a switch becomes cheaper as responses end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import inf, sqrt
from statistics import NormalDist

from rljob_runtime.scheduling.adaptive_tp.load_curve import Point
from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PairCost

FULL = 0.9
"""Share of a KV cache that the responses may fill after a switch: shares are not even, and lengths not known."""


@dataclass(frozen=True)
class PlannedSwitch:
    """A switch to `target` when at most `left` of the machine's responses still run."""

    target: int
    left: float


@dataclass(frozen=True)
class SwitchPlan:
    """Predicted seconds from now until the machine is done.

    `never`: without a switch. `wait`: with the best plan that does not switch now. `now`: with the best plan after a
    switch to each size that holds the responses. `full`: sizes that do not hold all, or run all together. `after`: the
    switches that follow the one to the best size."""

    never: float
    wait: float
    now: Mapping[int, float]
    full: frozenset[int]
    after: tuple[PlannedSwitch, ...] = ()

    @property
    def best(self) -> int | None:
        """The size of the best plan that switches now, the smallest of equal ones."""
        return min(self.now, key=lambda size: (self.now[size], size), default=None)


_Key = tuple[int, int]
"""A size, and the number of switches that are left."""


def plan_switches(
    curve: Sequence[Point],
    current: int,
    engines: Mapping[int, SizedEngine],
    accelerators: int,
    costs: Mapping[tuple[int, int], PairCost],
    switches: int,
    closed: frozenset[tuple[int, int]] = frozenset(),
) -> SwitchPlan:
    """Return the best plan with at most this many switches, none of them `closed`."""
    segments = {size: _segments(curve, engine, accelerators // size) for size, engine in engines.items()}
    fits = {size: _fits(curve, engine, accelerators // size) for size, engine in engines.items()}
    ahead: dict[_Key, float] = {(size, left): 0.0 for size in engines for left in range(switches + 1)}
    choices: list[dict[_Key, int]] = [{} for _ in curve]
    for place in range(len(curve) - 2, 0, -1):
        stay = {key: segments[key[0]][place] + seconds for key, seconds in ahead.items()}
        ahead = dict(stay)
        point = curve[place]
        carried = point.carried
        for (start, target), pair in costs.items():
            if not fits[target][place] or (start, target) in closed:
                continue
            paid = point.any_runs * pair.seconds(carried)
            for left in range(1, switches + 1):
                if (seconds := paid + stay[target, left - 1]) < ahead[start, left]:
                    ahead[start, left] = seconds
                    choices[place][start, left] = target
    now, full = {}, set()
    for target in engines:
        if target == current or not switches or (current, target) in closed:
            continue
        if not fits[target][0]:
            full.add(target)
            continue
        paid = costs[current, target].seconds(curve[0].carried)
        now[target] = paid + segments[target][0] + ahead[target, switches - 1]
    wait = segments[current][0] + ahead[current, switches]
    plan = SwitchPlan(sum(segments[current]), wait, now, frozenset(full))
    if plan.best is None:
        return plan
    return replace(plan, after=tuple(_followed(curve, choices, (plan.best, switches - 1))))


def expected_seconds(curve: Sequence[Point], engine: SizedEngine, replicas: int) -> float:
    """Return the seconds of a curve without a switch."""
    return sum(_segments(curve, engine, replicas))


def _followed(curve: Sequence[Point], choices: Sequence[Mapping[_Key, int]], key: _Key) -> Iterator[PlannedSwitch]:
    """Follow the choices from the first point on."""
    for point, chosen in zip(curve, choices, strict=True):
        if (target := chosen.get(key)) is not None:
            yield PlannedSwitch(target, point.carried.responses)
            key = target, key[1] - 1


def _segments(curve: Sequence[Point], engine: SizedEngine, replicas: int) -> list[float]:
    """Return the expected seconds between each two points. Replicas have even shares at the first one."""
    began = max(1.0, curve[0].running)
    return [_segment(before, after, began, engine, replicas) for before, after in pairwise(curve)]


def _segment(before: Point, after: Point, began: float, engine: SizedEngine, replicas: int) -> float:
    chance = (before.any_runs + after.any_runs) / 2
    if chance < 1e-9:
        return 0.0
    running = max(1.0, (before.running + after.running) / 2 / chance)
    tokens = (before.tokens + after.tokens) / 2 / chance
    batch = fullest(running, began / chance, replicas)
    context = tokens / running * batch
    share = engine.share(batch, context)
    step = (_base(engine, batch * share) + engine.latency.context_token_seconds * context * share) / share
    return (after.steps - before.steps) * chance * step


def fullest(running: float, began: float, replicas: int) -> float:
    """Return the expected responses on the fullest replica, of `running` ones that are left of `began`.

    Each of `began` responses is left with the same chance, so that a replica's number is binomial. The largest of
    several such numbers is about that of normal ones.

    >>> fullest(100, 100, 4), round(fullest(100, 400, 4), 1), fullest(100, 400, 1)
    (25.75, 29.7, 100)
    """
    others = (running - 1) / replicas
    ended = max(0.0, 1 - running / began)
    return min(running, 1 + others + _largest(replicas) * sqrt(others * ended * (1 - 1 / replicas)))


@cache
def _largest(count: int) -> float:
    """Return the expected largest of so many standard normal values (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def _base(engine: SizedEngine, batch: float) -> float:
    """Return the seconds of a step of a batch that need not be a whole number."""
    whole = max(1, int(batch))
    low = engine.latency.base(whole)
    return low + (engine.latency.base(whole + 1) - low) * max(0.0, batch - whole)


def holds(curve: Sequence[Point], engine: SizedEngine, replicas: int) -> bool:
    """Check whether engines of this size run all responses together, from the first point on."""
    return _fits(curve, engine, replicas)[0]


def _fits(curve: Sequence[Point], engine: SizedEngine, replicas: int) -> list[bool]:
    """Return for each point whether the engines run all responses, and their caches hold the tokens, from there on.

    A step is predicted for responses that run together: those that wait for others would end much later."""
    most, fits = -inf, []
    for point in reversed(curve):
        most = max(most, point.tokens)
        runs = point.carried.responses <= engine.max_running * replicas
        fits.append(runs and most <= FULL * engine.kv_tokens * replicas)
    return fits[::-1]
