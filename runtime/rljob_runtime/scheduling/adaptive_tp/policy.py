"""Switch policy: decides whether a machine switches its tensor parallel size now (PAT §4.2).

    plan     least time by dynamic programming over the expected curve of what is left
    margin   against never switching. Against waiting only the order counts: to stay for one look and then switch costs
             next to nothing more than to switch now, so a margin against it would put every switch off for ever
    play     now, never, and one look later, on the same drawn lengths; now must win clearly

PAT's printed algorithm has neither the margin nor the play, and flaps (docs/internals/scheduling/adaptive-tp.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, stdev

from rljob_runtime.scheduling.adaptive_tp.draws import draws_of
from rljob_runtime.scheduling.adaptive_tp.load_curve import load_curve
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, SizedEngine
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PairCost, State, SwitchCosts, carried_by
from rljob_runtime.scheduling.adaptive_tp.switch_plan import PlannedSwitch, SwitchPlan, plan_switches
from rljob_runtime.scheduling.adaptive_tp.tail import play

FEWEST_DRAWS, MOST_DRAWS = 4, 8
DRAWN_RESPONSES = 4096
"""Lengths drawn per play: small machines are drawn more often."""
LEAST_SECONDS = 0.3
"""A smaller gain is within the time between two polls."""
COST_SHARE = 0.25
"""Share of the switch's cost that the gain must exceed, because the cost is predicted too."""
STANDARD_ERRORS = 2.0
LOOK_SHARE = 0.01
"""Share of a machine's responses that end between two looks, or …"""
LOOK_SECONDS = 0.5
"""… seconds between two looks."""


@dataclass(frozen=True)
class SwitchRules:
    """When a switch is permitted.

    `sizes`: those that the machine may have. `min_gain`: share of the time without a switch that it must save.
    `max_switches`: of a machine in a round. `state`: how unfinished responses are carried over."""

    sizes: frozenset[int]
    min_gain: float = 0.03
    max_switches: int = 3
    state: State = State.AUTO

    def __post_init__(self) -> None:
        if not 0 <= self.min_gain < 1:
            raise ValueError(f"min_gain is {self.min_gain}; a share in [0, 1) would be right")
        if self.max_switches < 0:
            raise ValueError(f"max_switches is {self.max_switches}; 0 or more would be right")


class SwitchOutcome(StrEnum):
    """Why a machine switches its size, or does not. The first ones say most about a round."""

    SWITCHED = "Switched"
    POLICY_FAILED = "PolicyFailed"
    """The policy failed by an unforeseen error."""
    CHANGED = "Changed"
    """A switch was decided, but the machine has changed since."""
    LATER = "Later"
    """A switch is predicted to pay, but to pay more later."""
    TRAINING_BOUND = "TrainingBound"
    """A switch would end generation earlier, but not the round: the trainer processes complete groups until later."""
    NO_GAIN = "NoGain"
    KV_CACHE_FULL = "KVCacheFull"
    """The responses would not fit the caches of any other size, or could not run there together."""
    NOT_PREDICTED = "NotPredicted"
    """The speed of this size, or of every other one, is unknown, or no length was observed yet."""
    MAX_SWITCHES = "MaxSwitches"
    WAITING = "Waiting"
    """Responses wait for a launch, or in an engine, and no other size would run all of them."""
    ONE_SIZE = "OneSize"
    """The machine has engines of one size only."""
    IDLE = "Idle"
    """Nothing runs on the machine."""


@dataclass(frozen=True)
class SwitchDecision:
    """A switch to `target` now, or none unless `outcome` is SWITCHED.

    `state`: how responses are carried over. `seconds`: predicted cost of the switch. `gain`: predicted seconds by which
    the machine is done earlier, of `without`, the predicted seconds without a switch; None if not predicted.
    `prefill_seconds`: of the responses in the new size, by its latency model.

    A build of engines counts in `seconds` and `gain` with the share of this round. `build`: all its seconds. `unpaid`:
    those of them that later rounds pay. `unpaid_in_round`: the same of all switches that are planned."""

    outcome: SwitchOutcome
    target: int | None = None
    state: State | None = None
    seconds: float | None = None
    gain: float | None = None
    without: float | None = None
    prefill_seconds: float = 0.0
    build: float = 0.0
    unpaid: float = 0.0
    unpaid_in_round: float = 0.0


def decide(
    snapshot: MachineSnapshot, engines: Mapping[int, SizedEngine], costs: SwitchCosts, rules: SwitchRules
) -> SwitchDecision:
    """Decide for one machine. `engines`: those of every size whose speed is known."""
    if (outcome := _refused(snapshot, engines, rules)) is not None:
        return SwitchDecision(outcome)
    known = {size: engine for size, engine in engines.items() if size in rules.sizes | {snapshot.tensor_parallel}}
    pairs = costs.table(known, snapshot.accelerators, rules.state, snapshot.builds)
    left = rules.max_switches - snapshot.switches
    curve = load_curve(snapshot)
    plan = plan_switches(curve, snapshot.tensor_parallel, known, snapshot.accelerators, pairs, left, snapshot.closed)
    target = plan.best
    if target is None:
        full = SwitchOutcome.WAITING if snapshot.queued else SwitchOutcome.KV_CACHE_FULL
        return SwitchDecision(full if plan.full else SwitchOutcome.NO_GAIN, without=plan.never)
    cost = pairs[snapshot.tensor_parallel, target].of(curve[0].carried)
    gain = plan.never - plan.now[target]
    if not is_worth(gain, plan.never, cost.seconds, rules):
        return SwitchDecision(_why_not(plan, cost.seconds, rules), gain=gain, without=plan.never)
    if plan.now[target] > plan.wait:
        return SwitchDecision(SwitchOutcome.LATER, gain=gain, without=plan.never)
    return _played(snapshot, engines, pairs, rules, (PlannedSwitch(target, snapshot.count), *plan.after))


def _refused(snapshot: MachineSnapshot, engines: Mapping[int, SizedEngine], rules: SwitchRules) -> SwitchOutcome | None:
    if not snapshot.count:
        return SwitchOutcome.IDLE
    if snapshot.waiting:
        return SwitchOutcome.WAITING
    if snapshot.switches >= rules.max_switches:
        return SwitchOutcome.MAX_SWITCHES
    others = rules.sizes - {snapshot.tensor_parallel}
    if not others:
        return SwitchOutcome.ONE_SIZE
    if snapshot.tensor_parallel not in engines or not others & engines.keys() or not snapshot.lengths.lengths:
        return SwitchOutcome.NOT_PREDICTED
    return None


def is_worth(gain: float, without: float, cost: float, rules: SwitchRules) -> bool:
    """Check the margin against never switching."""
    return gain > max(rules.min_gain * without, least_gain(cost))


def least_gain(cost: float) -> float:
    """Return the seconds that a switch of this cost, in seconds, must save more than."""
    return max(LEAST_SECONDS, COST_SHARE * cost)


def _why_not(plan: SwitchPlan, cost: float, rules: SwitchRules) -> SwitchOutcome:
    later = is_worth(plan.never - plan.wait, plan.never, cost, rules)
    if later:
        return SwitchOutcome.LATER
    return SwitchOutcome.KV_CACHE_FULL if plan.full else SwitchOutcome.NO_GAIN


def _played(
    snapshot: MachineSnapshot,
    engines: Mapping[int, SizedEngine],
    pairs: Mapping[tuple[int, int], PairCost],
    rules: SwitchRules,
    switches: tuple[PlannedSwitch, ...],
) -> SwitchDecision:
    """Play the planned switches on drawn lengths, at the placement that the machine really has."""
    first = switches[0]
    look = snapshot.count - ends_between_looks(snapshot.count)
    delayed = replace(first, left=look), *(replace(one, left=min(one.left, look)) for one in switches[1:])
    now, never, later = [], [], []
    for draw in draws_of(snapshot, min(MOST_DRAWS, max(FEWEST_DRAWS, DRAWN_RESPONSES // snapshot.count))):
        now.append(play(snapshot, draw, engines, pairs, switches))
        never.append(play(snapshot, draw, engines, pairs))
        later.append(play(snapshot, draw, engines, pairs, delayed))
    gains = [before - after for before, after in zip(never, now, strict=True)]
    gain, without = fmean(gains), fmean(never)
    pair, carried = pairs[snapshot.tensor_parallel, first.target], carried_by(snapshot.running)
    cost = pair.of(carried)
    if not is_worth(gain, without, cost.seconds, rules) or gain < STANDARD_ERRORS * _standard_error(gains):
        return SwitchDecision(SwitchOutcome.NO_GAIN, gain=gain, without=without)
    saved = [after - before for after, before in zip(now, later, strict=True)]
    if fmean(saved) > STANDARD_ERRORS * _standard_error(saved):
        return SwitchDecision(SwitchOutcome.LATER, gain=gain, without=without)
    prefill = pair.predicted_prefill(carried)
    sizes = [snapshot.tensor_parallel, *(one.target for one in switches)]
    unpaid = sum(pairs[each].unpaid for each in pairwise(sizes))
    return SwitchDecision(
        SwitchOutcome.SWITCHED,
        first.target,
        cost.state,
        cost.seconds,
        gain,
        without,
        prefill,
        pair.build,
        pair.unpaid,
        unpaid,
    )


def _standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def ends_between_looks(responses: int) -> int:
    """Return how many responses of a machine end between two looks.

    >>> ends_between_looks(20), ends_between_looks(1024)
    (1, 11)
    """
    return max(1, math.ceil(LOOK_SHARE * responses))


class LookCadence:
    """When a machine is looked at: after enough responses ended, or enough seconds."""

    def __init__(self) -> None:
        self._completed = 0
        self._at = -math.inf

    def is_due(self, completed: int, responses: int, now: float) -> bool:
        """Check whether to look now, and if so record the look. `completed` of `responses` have ended."""
        if completed <= self._completed:
            return False
        if completed - self._completed < ends_between_looks(responses) and now - self._at < LOOK_SECONDS:
            return False
        self._completed, self._at = completed, now
        return True
