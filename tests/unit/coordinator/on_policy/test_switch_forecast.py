"""The size in which a round begins is predicted together with the switches that follow."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rljob_api.status import RoundKind, RoundReport
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.on_policy.plan_next_round import planned
from rljob_runtime.coordinator.on_policy.round_inputs import RoundInputs, inputs_of
from rljob_runtime.coordinator.store.round_history import Remembered, RememberedRound
from rljob_runtime.perf_model.observed_speed import Speed, SpeedSample
from rljob_runtime.protocols import KvSize
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchRules
from rljob_runtime.scheduling.adaptive_tp.switch_costs import ENOUGH, Part, State, SwitchCosts
from rljob_runtime.scheduling.round_planner.length_model import PromptLengths
from rljob_runtime.scheduling.round_planner.planner import PlanningHorizon
from rljob_runtime.scheduling.round_planner.plans import DEFAULT_PLAN, SelectedPlan
from rljob_runtime.scheduling.round_planner.round_history import PastRound
from rljob_runtime.scheduling.round_planner.survival import LengthObservation
from tests.support.simulated_job import job

HORIZON = PlanningHorizon(prompts=32, responses=8, rounds_left=20)
RULES = SwitchRules(frozenset({1, 4}))
AUTO = {"enabled": "Auto", "promptFactor": "Auto", "responseFactor": "Auto"}


def speed(size: int, machines: int = 1) -> Speed:
    """Steps of a wide engine are shorter for few sequences; narrow ones generate more tokens in all."""
    fixed, slope = 0.001 + 0.020 / size, 0.0008 + 0.0001 * size
    samples = [SpeedSample(100, batch, 0.0, 100 * (fixed + slope * batch)) for batch in (1.0, 48.0)]
    prefill = SpeedSample(10, 48.0, 0.0, 10 * (fixed + slope * 48) + 0.1, prompt_tokens=10_000)
    return Speed(machines * 4 // size, 1 << 30, 1024, (*samples, prefill))


def choose(
    rules: SwitchRules | None,
    costs: SwitchCosts | None = None,
    tail: dict[str, Any] | None = None,
    size: int = 1,
    machines: int = 1,
    bounds: range = range(0),
) -> SelectedPlan:
    """Choose the plan after two rounds in this size, on machines with four accelerators that were seen in 1 and 4."""
    random = Random(3)

    def prompt() -> PromptLengths:
        lengths = (LengthObservation(int(min(2000, 50 + random.expovariate(1 / 300)))) for _ in range(8))
        return PromptLengths(20, tuple(lengths))

    past = [PastRound(step, {PromptKey(0, 32 * step + n): prompt() for n in range(32)}, frozenset()) for step in (1, 2)]
    report = RoundReport(round=2, kind=RoundKind.PLAIN, responses=256, tensor_parallel_size=size)
    rounds = tuple(RememberedRound(report, DEFAULT_PLAN, speed(size, machines), {}) for _ in past)
    remembered = Remembered(rounds, alone=(speed(size),), elsewhere={5 - size: (speed(5 - size),)})
    of = job(prompts=32, responses=8, data={"maxResponseTokens": 2000}, tail=tail or {"enabled": False})
    settings = replace(Settings.of(of), first_responses=64, tensor_parallel_sizes=(1, 4), slots=4, switch_rules=rules)
    settings = replace(settings, machines=bounds)
    inputs = inputs_of(settings, remembered, past, [(1000.0, 1.0)], HORIZON)
    assert isinstance(inputs, RoundInputs)
    return planned(settings, inputs, costs or SwitchCosts(), f"{settings.seed}/what-if/3")


def test_each_size_is_predicted_with_the_switches_that_follow_it() -> None:
    without, switched = dict(choose(None).layouts), dict(choose(RULES).layouts)
    assert without.keys() == switched.keys() == {1, 4}
    assert all(switched[size] < without[size] - 0.3 for size in (1, 4))
    assert abs(switched[1] - switched[4]) < abs(without[1] - without[4]), "a switch leaves a start that is not the best"


def test_switches_that_cost_too_much_are_not_predicted() -> None:
    dear = SwitchCosts()
    for pair in ((1, 4), (4, 1)):
        for _ in range(ENOUGH):
            dear.record(*pair, Part.LOAD, 1, 1e5)
    assert choose(RULES, dear).layouts == choose(None).layouts


def test_a_switch_that_moves_kv_is_predicted_as_one() -> None:
    """Its cost is that of the cheaper way, as in the decision."""

    def with_kv(room: int, state: State = State.AUTO) -> dict[int, float]:
        costs = SwitchCosts()
        costs.kv = KvSize(heads=4, head_bytes=100, room_bytes=room)
        return dict(choose(replace(RULES, state=state), costs).layouts)

    recomputed, moved = dict(choose(RULES).layouts), with_kv(1 << 40)
    assert moved[1] < recomputed[1]
    assert moved[4] <= recomputed[4]
    assert with_kv(1 << 40, State.RECOMPUTE) == recomputed
    assert with_kv(400) == recomputed, "no room"


@pytest.mark.parametrize(
    "tail", [None, {"enabled": True, "promptFactor": 1.25, "responseFactor": 1.25}], ids=["plain", "a race"]
)
def test_each_number_of_machines_is_predicted_with_its_own_switches(tail: dict[str, Any] | None) -> None:
    """More machines have fewer responses each, and switch for another gain."""
    of = {present: dict(choose(RULES, None, tail, 4, present, range(1, 4)).machines) for present in (1, 2, 3)}
    assert of[2].keys() == {1, 2, 3}
    for present in (1, 3):
        own = of[present][present]
        assert of[2][present] == own, "as if that number were the present one"
    assert of[1][2] == of[3][2] == of[2][2]


def test_a_race_is_predicted_with_its_own_switches() -> None:
    """It has no tail that a wide size shortens, but a start in a wide size is left."""
    race = {"enabled": True, "promptFactor": 1.25, "responseFactor": 1.25}
    without, switched = dict(choose(None, tail=race).layouts), dict(choose(RULES, tail=race).layouts)
    assert switched[1] == without[1]
    assert switched[1] < switched[4] < 0.7 * without[4]


def test_races_are_compared_with_their_switches() -> None:
    """Otherwise a plain round would be chosen because the present size does not suit any round."""
    without, switched = (choose(rules, tail={**AUTO, "enabled": True}, size=4) for rules in (None, RULES))
    assert without.seconds is not None
    assert switched.seconds is not None
    assert switched.seconds < 0.8 * without.seconds


@pytest.mark.parametrize(("rules", "told"), [(RULES, True), (None, False)], ids=["switches", "none"])
def test_the_reason_of_a_plan_names_what_switches_save(rules: SwitchRules | None, told: bool) -> None:
    assert ("layout switches save" in choose(rules, tail=AUTO).reason) is told
