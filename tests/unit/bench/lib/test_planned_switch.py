"""The planned switch: it is made at its moment, also where the policy refuses it, and its gain is the policy's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from rljob_bench.lib.switches.planned_switch import LATEST, planned_switch
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchOutcome, SwitchRules, decide
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, SizedEngine
from rljob_runtime.scheduling.round_planner.survival import Survival
from tests.support.adaptive_tp import ENGINES, costs, engine, machine

RULES = SwitchRules(frozenset(ENGINES))
TAIL = machine((1, 1, 1, 1))
ALIGNED = machine((60, 60, 60, 60), generated=0)
WIDER_IS_WORSE = {1: ENGINES[1], 2: engine(2, slow=3), 4: engine(4, slow=4)}
TOTAL = 240


def test_a_switch_that_pays_is_that_of_the_policy() -> None:
    decision = decide(TAIL, ENGINES, costs(), RULES)
    assert decision.outcome is SwitchOutcome.SWITCHED
    assert planned_switch(TAIL, ENGINES, costs(), RULES, TOTAL) == decision


def test_a_switch_whose_gain_is_too_small_is_made_with_its_gain() -> None:
    careful = replace(RULES, min_gain=0.9)
    assert decide(TAIL, ENGINES, costs(), careful).outcome is SwitchOutcome.NO_GAIN
    made = planned_switch(TAIL, ENGINES, costs(), careful, TOTAL)
    assert made is not None
    assert (made.target, made.gain) == (4, decide(TAIL, ENGINES, costs(), RULES).gain)


@pytest.mark.parametrize(
    ("engines", "fixed"),
    [(WIDER_IS_WORSE, 0.5), (ENGINES, 500.0)],
    ids=["wider engines are slower", "it costs too much"],
)
def test_a_switch_that_no_plan_wants_is_made_late(engines: Mapping[int, SizedEngine], fixed: float) -> None:
    late = round(TAIL.count / LATEST)
    made = planned_switch(TAIL, engines, costs(fixed), RULES, late)
    assert made is not None
    assert made.outcome is SwitchOutcome.SWITCHED
    assert made.gain is not None
    assert made.gain < 0, "it is predicted to lose time"
    assert planned_switch(TAIL, engines, costs(fixed), RULES, late - 1) is None, "not before the tail"


@pytest.mark.parametrize(
    ("snapshot", "engines"),
    [
        pytest.param(ALIGNED, ENGINES, id="it is planned for the tail"),
        pytest.param(replace(TAIL, waiting=1), ENGINES, id="one waits"),
        pytest.param(replace(TAIL, replicas=((), ())), ENGINES, id="nothing runs"),
        pytest.param(TAIL, {2: ENGINES[2]}, id="its own speed is unknown"),
        pytest.param(TAIL, {1: ENGINES[1]}, id="no other speed is known"),
        pytest.param(replace(TAIL, lengths=Survival([])), ENGINES, id="no length is known"),
    ],
)
def test_it_waits_for_its_moment(snapshot: MachineSnapshot, engines: Mapping[int, SizedEngine]) -> None:
    assert planned_switch(snapshot, engines, costs(), RULES, max(TOTAL, snapshot.count)) is None
