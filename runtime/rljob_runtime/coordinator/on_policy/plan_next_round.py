"""Plan the next round: selects its plan by the job's own measurements, and predicts it elsewhere for the operator.

The store keeps measurements with their round, so a restarted coordinator decides the same, and a rewind forgets undone
rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from random import Random

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.generation.observed_engines import sized_engines
from rljob_runtime.coordinator.on_policy.round_inputs import RoundInputs, round_inputs
from rljob_runtime.coordinator.reporting.policy_failures import OptionalPolicy, PolicyFailures, attempt
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.protocols import PromptSource
from rljob_runtime.scheduling.adaptive_tp.forecast import Machine, stages_to_draw, switch_gains
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Race
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.round_planner.planner import (
    PILOT_EVENTS,
    PlanDecision,
    PlanningHorizon,
    RoundPlanner,
    decide,
)
from rljob_runtime.scheduling.round_planner.plans import CandidatePlans, Plan, SelectedPlan
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, PromptDemand
from rljob_runtime.scheduling.tail_batching import Factors, ceil_product, next_round

FAILED = "the planner failed by an error of its own; the coordinator's log has the traceback"


async def choose_plan(
    store: StoreAccess,
    settings: Settings,
    prompts: PromptSource,
    failures: PolicyFailures,
    step: int,
    horizon: PlanningHorizon,
) -> SelectedPlan:
    """Select the plan of round `step`, and predict it for other layouts and numbers of machines.

    The computation runs in the store's thread, so that the event loop continues. If it fails by an error, the round has
    the reference plan."""
    candidates = settings.choices
    if not candidates.is_undecided and len(settings.tensor_parallel_sizes) == 1 and len(settings.machines) < 2:
        return SelectedPlan(candidates.reference)
    if not failures.is_asked(OptionalPolicy.PLANS):
        return _unforeseen(candidates, FAILED)
    remembered = await store.do(lambda its: its.remembered(settings.max_response_tokens))
    switches = failures.is_asked(OptionalPolicy.SWITCHES)
    switch_costs = await store.do(lambda its: its.rounds.switch_costs(settings.engines)) if switches else None

    def choose() -> SelectedPlan:
        inputs = round_inputs(settings, remembered, prompts, horizon)
        if isinstance(inputs, str):
            return _unforeseen(candidates, inputs)
        return planned(settings, inputs, switch_costs, f"{settings.seed}/what-if/{step}")

    chosen = await store.do(lambda _: attempt(choose))
    if isinstance(chosen, Exception):
        failures.failed(OptionalPolicy.PLANS, chosen)
        return _unforeseen(candidates, FAILED)
    failures.decided(OptionalPolicy.PLANS)
    return chosen


@dataclass
class _Savings:
    """Seconds that layout switches save in the next round, by the size and the number of machines that it begins with.

    `machine`: one that switches its layout inside rounds; None if machines do not. `limit`: tokens of a response."""

    machine: Machine | None
    numbers: Collection[int]
    inputs: RoundInputs
    limit: int
    seed: str
    _known: dict[Factors | None, Mapping[tuple[int, int], float]] = field(default_factory=dict)

    def of(self, factors: Factors | None) -> Mapping[tuple[int, int], float]:
        """Return those of a race; None: the last response ends the round. 0 for a start that is absent."""
        if factors not in self._known:
            self._known[factors] = {
                (size, number): seconds
                for number in self.numbers
                for size, seconds in self._on(number, factors).items()
            }
        return self._known[factors]

    def _on(self, machines: int, factors: Factors | None) -> dict[int, float]:
        """Return those on this many machines, by size; empty if fewer than two sizes were measured."""
        if self.machine is None:
            return {}
        stages, race = _stages(self.inputs, machines, f"{self.seed}/switches", factors)
        return switch_gains(self.machine, stages, self.inputs.lengths.observed, self.limit, race)


@dataclass(frozen=True)
class _Predictor:
    """Predicts the next round. `saved`, `in_race`: what switches save in a round without a race, and in one."""

    inputs: RoundInputs
    seed: str
    saved: Mapping[tuple[int, int], float]
    in_race: Mapping[tuple[int, int], float]

    def planner(
        self, candidates: CandidatePlans, fleet: EngineFleet, size: int | None = None, machines: int | None = None
    ) -> RoundPlanner:
        """Return the planner of rounds on this fleet, of `machines` that begin in `size`; None: as they are."""
        inputs = self.inputs
        start = size or inputs.size, machines or inputs.machines
        costs = replace(inputs.costs, saved=self.saved.get(start, 0.0), saved_in_race=self.in_race.get(start, 0.0))
        return RoundPlanner(candidates, fleet, inputs.lengths, costs, inputs.horizon, self.seed)


def planned(settings: Settings, inputs: RoundInputs, switch_costs: SwitchCosts | None, seed: str) -> SelectedPlan:
    """Select a plan by these inputs, and predict it for other sizes and numbers of machines.

    `switch_costs`: None if the policy of switches is not asked any more."""
    candidates, horizon = settings.choices, inputs.horizon
    by_machines = inputs.fleets_by_machines(settings)
    machine = _switching(settings, inputs, switch_costs)
    savings = _Savings(machine, sorted({inputs.machines, *by_machines}), inputs, settings.max_response_tokens, seed)
    saved, in_race = savings.of(None), _saved_in_any_race(savings, candidates)
    chosen = SelectedPlan(candidates.reference)
    if candidates.is_undecided:
        planner = _Predictor(inputs, seed, saved, in_race).planner(candidates, inputs.fleet)
        decision = decide(planner, in_force=inputs.remembered.rounds[-1].chosen.plan)
        if decision is None:
            why = f"a round costs more to predict than {PILOT_EVENTS:,} events of the engine model"
            return _unforeseen(candidates, why)
        chosen = _decided(decision, inputs, saved.get((inputs.size, inputs.machines)))
    following = _next(chosen.plan, horizon)
    if following[0] is RoundKind.SHORT:
        in_race = savings.of(chosen.plan.factors)
    predictor, plan = _Predictor(inputs, seed, saved, in_race), CandidatePlans((chosen.plan,))

    def predicted(fleet: EngineFleet, size: int | None = None, machines: int | None = None) -> float | None:
        return predictor.planner(plan, fleet, size, machines).predict(*following)

    by_size = inputs.fleets_by_size(settings.tensor_parallel_sizes)
    return replace(
        chosen,
        layouts=_rounded((size, predicted(its, size)) for size, its in sorted(by_size.items())),
        machines=_rounded((number, predicted(its, machines=number)) for number, its in sorted(by_machines.items())),
    )


def _saved_in_any_race(savings: _Savings, candidates: CandidatePlans) -> Mapping[tuple[int, int], float]:
    """Return what switches save in the races that are compared.

    One of them stands for all: a play for each would cost more than they differ."""
    factors = next((plan.factors for plan in candidates.plans if plan.factors is not None), None)
    return savings.of(factors) if candidates.is_undecided and factors is not None else {}


def _rounded(predicted: Iterable[tuple[int, float | None]]) -> tuple[tuple[int, float], ...]:
    return tuple((number, round(seconds, 3)) for number, seconds in predicted if seconds is not None)


def _switching(settings: Settings, inputs: RoundInputs, switch_costs: SwitchCosts | None) -> Machine | None:
    """Return a machine that switches its layout inside rounds; None if machines do not."""
    rules, remembered = settings.switch_rules, inputs.remembered
    if rules is None or not inputs.size or switch_costs is None:
        return None
    speeds = {**remembered.elsewhere, inputs.size: remembered.alone or remembered.beside}
    return Machine(sized_engines(speeds, switch_costs.kv, inputs.outside), settings.slots, switch_costs, rules)


def _stages(
    inputs: RoundInputs, machines: int, seed: str, factors: Factors | None
) -> tuple[list[list[Asked]], Race | None]:
    """Draw stages of one machine; return them with what they keep, None for all.

    Without a race a machine has its share of the responses. With one it has its share of the prompts, so that a group
    is complete where it is generated."""
    launched, horizon = factors or Factors(1, 1), inputs.horizon
    count = ceil_product(launched.prompts, horizon.prompts)
    responses = ceil_product(launched.responses, horizon.responses)
    stages = []
    for draw in range(stages_to_draw(count * responses // machines)):
        prompts = inputs.lengths.draw(Random(f"{seed}/{draw}"), count, responses)
        if factors is None:
            stages.append([one for prompt in prompts for one in _asked(prompt)][::machines])
        else:
            share = enumerate(prompts[::machines])
            stages.append([one for number, prompt in share for one in _asked(prompt, number)])
    if factors is None:
        return stages, None
    kept = ceil(len(range(0, count, machines)) * horizon.prompts / count)
    return stages, Race(kept, horizon.responses)


def _asked(prompt: PromptDemand, group: int = 0) -> list[Asked]:
    return [Asked(prompt.prompt_tokens, tokens, group) for tokens in prompt.lengths]


def _unforeseen(candidates: CandidatePlans, why: str) -> SelectedPlan:
    return SelectedPlan(candidates.reference, why if candidates.is_undecided else "")


def _decided(decision: PlanDecision, inputs: RoundInputs, saved: float | None) -> SelectedPlan:
    lengths, rounds = inputs.lengths, len(inputs.remembered.rounds)
    seen = f"{len(lengths)} responses ({lengths.stopped} of them stopped)"
    basis = f"; by {seen} and the speed of the engines in {rounds} rounds"
    if saved is not None:
        basis += f"; layout switches save {saved:.3g} s where no race ends the round"
    predicted, following = decision.prediction, _next(decision.plan, inputs.horizon)
    seconds, explained = round(predicted.of(*following), 3), round(predicted.explained(*following), 3)
    return SelectedPlan(decision.plan, decision.reason + basis, seconds, round(decision.speedup, 3), explained)


def _next(plan: Plan, horizon: PlanningHorizon) -> tuple[RoundKind, int]:
    """Return the kind of the next round by this plan, and how many of its prompts come from the queue."""
    opening = next_round(horizon.prompts, horizon.responses, plan.factors, horizon.queued, horizon.rounds_left)
    return opening.shape.kind, opening.queued
