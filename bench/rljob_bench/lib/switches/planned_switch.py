"""Planned switch: the one that a machine's plan makes, at its moment, whether it is worth it or not.

The policy refuses a switch whose gain is small or not clear (`scheduling.adaptive_tp.policy`), so a job may have none.
What the policy predicts of a switch can be measured anyway: by one that is made at the moment of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from rljob_runtime.scheduling.adaptive_tp.draws import draws_of
from rljob_runtime.scheduling.adaptive_tp.load_curve import load_curve
from rljob_runtime.scheduling.adaptive_tp.policy import MOST_DRAWS, SwitchDecision, SwitchOutcome, SwitchRules
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, SizedEngine
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts, carried_by
from rljob_runtime.scheduling.adaptive_tp.switch_plan import PlannedSwitch, SwitchPlan, plan_switches
from rljob_runtime.scheduling.adaptive_tp.tail import play

LATEST = 1 / 8
"""Share of the round's responses that are left when a switch is made that no plan wants: in such a tail sizes differ,
and seconds are left that show how much."""
SAME = 1e-9
"""Share by which seconds of equal plans differ, because they are added in another order."""


def planned_switch(
    snapshot: MachineSnapshot, engines: Mapping[int, SizedEngine], costs: SwitchCosts, rules: SwitchRules, total: int
) -> SwitchDecision | None:
    """Return the switch that is made at this look, with its predicted gain, or None.

    It is made where the best plan with one switch has it now. If no plan with one is better than never, it is made when
    the round has at most `LATEST` of its `total` responses left. `engines`: those of every size whose speed is known.
    """
    size = snapshot.tensor_parallel
    known = {each: engine for each, engine in engines.items() if each in rules.sizes | {size}}
    if snapshot.waiting or not snapshot.count or size not in known or not snapshot.lengths.lengths:
        return None
    curve, pairs = load_curve(snapshot), costs.table(known, snapshot.accelerators, rules.state)
    plan = plan_switches(curve, size, known, snapshot.accelerators, pairs, 1)
    if (target := plan.best) is None or not _is_due(plan, plan.now[target], snapshot.count <= LATEST * total):
        return None
    gain, without = _gain(snapshot, engines, costs, rules, target)
    pair, carried = pairs[size, target], carried_by(snapshot.running)
    cost = pair.of(carried)
    prefill = pair.predicted_prefill(carried)
    return SwitchDecision(SwitchOutcome.SWITCHED, target, cost.state, cost.seconds, gain, without, prefill)


def _is_due(plan: SwitchPlan, now: float, late: bool) -> bool:
    if now < plan.never * (1 - SAME):
        return now <= plan.wait
    return late and plan.wait >= plan.never * (1 - SAME)


def _gain(
    snapshot: MachineSnapshot, engines: Mapping[int, SizedEngine], costs: SwitchCosts, rules: SwitchRules, target: int
) -> tuple[float, float]:
    """Return the seconds that the switch saves, and those without it: as the policy plays them."""
    pairs = costs.table(engines, snapshot.accelerators, rules.state)
    switches = (PlannedSwitch(target, snapshot.count),)
    draws = draws_of(snapshot, MOST_DRAWS)
    without = [play(snapshot, draw, engines, pairs) for draw in draws]
    made = [play(snapshot, draw, engines, pairs, switches) for draw in draws]
    return fmean(before - after for before, after in zip(without, made, strict=True)), fmean(without)
