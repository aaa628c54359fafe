"""Idle profile: which machines measure which layout while the trainer updates (PAT §4.2, at no cost in time).

On-policy machines rest during an update. A machine may then visit a layout that it never ran: it switches there, loads
the weights that it has, measures a few loads, and returns. The next stage must not wait, and a build of engines cannot
be interrupted. So a visit begins only if the ways there and back fit well into the shortest of the last updates.

Where updates are shorter than a build, a layout would stay unknown for ever, and no switch would ever be predicted. So
one machine may measure a layout that no machine has shown, though the visit may outlast the update. New weights wait
for it, and with them all machines. The job affords that from a budget, which is a small part of its time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rljob_runtime.perf_model.sampling_plan import Point, sampling_plan
from rljob_runtime.protocols import EngineStats, LoadTiming, ProfileLimits
from rljob_runtime.scheduling.adaptive_tp.switch_costs import Part, SwitchCosts

UPDATES = 4
"""Last updates whose shortest one predicts the next."""
SHARE = 0.7
"""Part of that update in which a visit has to end; half of it after each delay that a profile has caused."""
SLOW = 2.0
"""Times their prediction that the ways there and back may take."""
LEAST_SECONDS, MOST_SECONDS = 1.0, 20.0
"""Seconds of measuring that are worth a visit, and those after which a few loads are known."""
MOST_TRIES = 3
"""Visits of a machine to a layout of which nothing came. Of all machines together, if one may outlast an update."""
OVERRUN_SHARE = 0.01
"""Part of the job's time so far by which visits may outlast updates."""
SAVED_SHARE = 0.03
"""Part of its generation that a job is assumed to save with switches: `rljob bench pat` finds 0 to 9 %."""
ENOUGH_SECONDS = 3.0
"""Seconds of measuring of a visit that may outlast its update: enough for loads that fix a model."""

STEPS = 8
"""Decode steps of a load: their median counts."""
LEEWAY = 40
"""Tokens that a sequence may make while others of its load are in prefill."""
MOST_TOKENS = 1 << 16
"""Tokens of a load: the prefill of more takes seconds and tells nothing new of a step."""
MOST_LOADS = 12


class IdleOutcome(StrEnum):
    """Why a resting machine measures a layout, or does not."""

    PROFILED = "Profiled"
    NOTHING_NEW = "NothingNew"
    """It ran every layout that it may have."""
    NOT_PREDICTED = "NotPredicted"
    """No update has ended yet, so nothing tells how long it rests."""
    TOO_SHORT = "TooShort"
    """The ways there and back are too long for an update, and the budget does not allow for the rest."""
    OVERRUNS = "Overruns"
    """It measures a layout that is unknown everywhere, though it may be back only after the update."""


@dataclass(frozen=True)
class RestingMachine:
    """A machine whose engines rest, with the weights of the round.

    `sizes`: those that it may have, without those that it refused. `ran`: those that its processes have had. `tries`:
    its visits of which nothing came, by size."""

    name: str
    tensor_parallel: int
    sizes: Collection[int]
    ran: Collection[int] = ()
    built: Collection[int] = ()
    tries: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Rest:
    """How long machines rest. `updates`: seconds of the last updates. `delays`: unforeseen waits for a profile.

    `build_seconds`: the longest that a build of engines took; None if unknown."""

    updates: Sequence[float]
    delays: int = 0
    build_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds after the start of an update within which a visit has to end."""
        return SHARE * min(self.updates[-UPDATES:]) / 2**self.delays if self.updates else 0.0

    def overrun(self, there: float, back: float) -> float:
        """Return the seconds by which a visit with these ways may outlast an update."""
        return SLOW * (there + back) + ENOUGH_SECONDS - self.seconds


@dataclass(frozen=True)
class OverrunBudget:
    """Seconds by which a visit may outlast an update. All machines wait meanwhile, so they are seconds of the job.

    `seconds`: of generation and updates so far. `spent`: of overruns so far. `left`: predicted seconds of generation
    from the next round to the end of the job."""

    seconds: float = 0.0
    spent: float = 0.0
    left: float = 0.0

    @property
    def allowed(self) -> float:
        """Seconds of the next overrun at most: what was earned, and what the rounds left can repay."""
        return min(OVERRUN_SHARE * self.seconds - self.spent, SAVED_SHARE * self.left)


NO_BUDGET = OverrunBudget()


@dataclass(frozen=True)
class IdleProfile:
    """The decision for a machine. `size`: the layout to measure. `until`: seconds after the start of the update.

    `overrun`: predicted seconds for which the next stage waits; 0 unless the outcome is OVERRUNS."""

    outcome: IdleOutcome
    size: int | None = None
    until: float = 0.0
    overrun: float = 0.0

    @property
    def least_seconds(self) -> float:
        """Seconds of measuring that the end of the update does not cut."""
        return ENOUGH_SECONDS if self.outcome is IdleOutcome.OVERRUNS else 0.0


def plan_profiles(
    machines: Iterable[RestingMachine],
    known: Collection[int],
    rest: Rest,
    costs: SwitchCosts,
    budget: OverrunBudget = NO_BUDGET,
) -> dict[str, IdleProfile]:
    """Decide for each machine. `known`: sizes whose speed any machine has shown. `budget`: for one visit at most.

    Machines measure different layouts as far as possible, those first of which nothing is known."""
    machines = sorted(machines, key=lambda one: one.name)
    planned = _plan_in_time(machines, known, rest, costs)
    return planned | _plan_overrun(machines, planned, known, rest, costs, budget)


def _plan_in_time(
    machines: Sequence[RestingMachine], known: Collection[int], rest: Rest, costs: SwitchCosts
) -> dict[str, IdleProfile]:
    planned: dict[str, IdleProfile] = {}
    visits = Counter[int]()
    for machine in machines:
        found = [size for size in machine.sizes if _is_new(machine, size, known)]
        by_need = sorted(found, key=lambda size: (size in known, visits[size], size))
        planned[machine.name] = decision = _decide(machine, by_need, rest, costs)
        if decision.size is not None:
            visits[decision.size] += 1
    return planned


def _plan_overrun(
    machines: Sequence[RestingMachine],
    planned: Mapping[str, IdleProfile],
    known: Collection[int],
    rest: Rest,
    costs: SwitchCosts,
    budget: OverrunBudget,
) -> dict[str, IdleProfile]:
    """Return the shortest visit that outlasts the update, of a machine without another one, if the budget allows it.

    It is to a size that no machine has shown, and that none measures in this update."""
    tried = sum((Counter(machine.tries) for machine in machines), Counter[int]())
    visited = {plan.size for plan in planned.values()}
    found = [
        (rest.overrun(there, back), machine.name, size, there)
        for machine in machines
        if planned[machine.name].outcome is IdleOutcome.TOO_SHORT
        for size in machine.sizes
        if _is_new(machine, size, known) and size not in known and size not in visited and tried[size] < MOST_TRIES
        for there, back in [ways(machine, size, rest, costs)]
    ]
    overrun, name, size, there = min(found, default=(math.inf, "", 0, 0.0))
    if overrun > budget.allowed:
        return {}
    return {name: IdleProfile(IdleOutcome.OVERRUNS, size, SLOW * there + ENOUGH_SECONDS, overrun)}


def _is_new(machine: RestingMachine, size: int, known: Collection[int]) -> bool:
    if size == machine.tensor_parallel or machine.tries.get(size, 0) >= MOST_TRIES:
        return False
    return size not in machine.ran or size not in known


def _decide(machine: RestingMachine, sizes: Sequence[int], rest: Rest, costs: SwitchCosts) -> IdleProfile:
    if not sizes:
        return IdleProfile(IdleOutcome.NOTHING_NEW)
    if not rest.updates:
        return IdleProfile(IdleOutcome.NOT_PREDICTED)
    for size in sizes:
        there, back = ways(machine, size, rest, costs)
        if SLOW * (there + back) + LEAST_SECONDS <= rest.seconds:
            return IdleProfile(IdleOutcome.PROFILED, size, rest.seconds - SLOW * back)
    return IdleProfile(IdleOutcome.TOO_SHORT)


def ways(machine: RestingMachine, size: int, rest: Rest, costs: SwitchCosts) -> tuple[float, float]:
    """Return the predicted seconds until a machine is ready in a layout, and of its way back."""
    start = machine.tensor_parallel
    if size in machine.built:
        begin = costs.unit(start, size, Part.WAKE)
    else:
        begin = costs.unit(start, size, Part.BUILD) if rest.build_seconds is None else rest.build_seconds
    there = costs.unit(start, size, Part.SLEEP) + begin + costs.unit(start, size, Part.LOAD)
    return there, costs.unit(size, start, Part.SLEEP) + costs.unit(size, start, Part.WAKE)


def limits_of(responses: int, engines: int, context: int, seconds: float) -> ProfileLimits:
    """Return the limits of a profile of each of so many engines, which generate the responses of a round together.

    >>> limits_of(100, 8, 4096, 99.0)
    ProfileLimits(batch=13, context=4096, seconds=20.0)
    """
    return ProfileLimits(max(2, math.ceil(responses / max(1, engines))), context, min(MOST_SECONDS, seconds))


def loads_of(limits: ProfileLimits, stats: EngineStats) -> tuple[Point, ...]:
    """Return the loads to measure on an engine, in order: those first that span all. Empty if it is too small.

    >>> loads_of(ProfileLimits(4, 300, 1.0), EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0, kv_tokens=100_000))[:2]
    (Point(batch=1, context=16), Point(batch=1, context=252))
    """
    batch = min(limits.batch, stats.max_running or limits.batch)
    room = min(stats.kv_tokens or MOST_TOKENS, MOST_TOKENS)
    try:
        return sampling_plan(batch, limits.context - STEPS - LEEWAY, room, STEPS + LEEWAY)[:MOST_LOADS]
    except ValueError:
        return ()


def is_enough(timings: Sequence[LoadTiming]) -> bool:
    """Return whether a latency model can be fitted: two batches, and two lengths. A flat one would be believed."""
    return len({one.batch for one in timings}) > 1 and len({one.prompt_tokens for one in timings}) > 1
