"""Plan the next round: collects the job's own measurements and calls the round planner.

The store keeps measurements with their round, so a restarted coordinator decides the same, and a rewind forgets undone
rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from math import ceil
from random import Random
from statistics import fmean

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.generation.observed_engines import sized_engines
from rljob_runtime.coordinator.reporting.outside_time import outside_time
from rljob_runtime.coordinator.reporting.policy_failures import OptionalPolicy, PolicyFailures, attempt
from rljob_runtime.coordinator.store.round_history import Remembered, RememberedRound
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.perf_model.observed_speed import fit_latency, slowdown
from rljob_runtime.perf_model.outside_time import OutsideTime
from rljob_runtime.protocols import PromptSource
from rljob_runtime.scheduling.adaptive_tp.forecast import Machine, stages_to_draw, switch_gains
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Race
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.round_planner.length_model import LengthModel, PromptLengths
from rljob_runtime.scheduling.round_planner.planner import (
    FIRST_ROUNDS,
    MOST_FIRST_ROUNDS,
    PILOT_EVENTS,
    Costs,
    PlanDecision,
    PlanningHorizon,
    RoundPlanner,
    decide,
    has_enough_history,
    update_costs,
)
from rljob_runtime.scheduling.round_planner.plans import CandidatePlans, Plan, SelectedPlan
from rljob_runtime.scheduling.round_planner.round_history import PastRound, population
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, PromptDemand
from rljob_runtime.scheduling.tail_batching import Factors, ceil_product, next_round

UNBOUNDED = 1 << 40
"""Tokens of a KV cache of unknown size."""
ANY_NUMBER = 1 << 20
"""Simultaneous requests of an engine without a known limit."""
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
        past = [_past(one, prompts) for one in remembered.rounds]
        responses, updated = horizon.responses, remembered.updated or remembered.rounds
        updates = [_update(one, _past(one, prompts), responses) for one in updated]
        return _choose(settings, remembered, past, updates, switch_costs, horizon, step)

    chosen = await store.do(lambda _: attempt(choose))
    if isinstance(chosen, Exception):
        failures.failed(OptionalPolicy.PLANS, chosen)
        return _unforeseen(candidates, FAILED)
    failures.decided(OptionalPolicy.PLANS)
    return chosen


def _choose(
    settings: Settings,
    remembered: Remembered,
    past: Sequence[PastRound],
    updates: Sequence[tuple[float, float]],
    switch_costs: SwitchCosts | None,
    horizon: PlanningHorizon,
    step: int,
) -> SelectedPlan:
    candidates, rounds = settings.choices, remembered.rounds
    responses = sum(len(prompt.responses) for one in past for prompt in one.prompts.values())
    if not has_enough_history(len(rounds), responses, settings.first_responses):
        return _unforeseen(
            candidates,
            f"{len(rounds)} rounds with {responses} responses were seen{_since(remembered)}; {FIRST_ROUNDS} with "
            f"{settings.first_responses}, or {MOST_FIRST_ROUNDS} rounds, are needed to predict",
        )
    lengths = LengthModel(population(past), settings.max_response_tokens)
    longest = max(prompt.prompt_tokens for one in past for prompt in one.prompts.values())
    most_tokens = longest + settings.max_response_tokens
    fleet = _stage(remembered, most_tokens)
    if fleet is None:
        return _unforeseen(candidates, "the engines have not been seen at work for long enough to predict")
    most_prompts = settings.rules(next_round(horizon.prompts, horizon.responses, None, 0, 1).shape).max_prompts
    horizon = replace(horizon, most_prompts=most_prompts)
    costs, seed = _costs(remembered, updates, fleet), f"{settings.seed}/what-if/{step}"
    outside = outside_time([one.report for one in rounds])
    fleet, costs = _with_outside(fleet, outside), replace(costs, reward=costs.reward + outside.fixed)
    layout = rounds[-1].report.tensor_parallel_size or 0
    fleets = _machines(remembered, fleet, settings)
    present = max(1, fleet.replicas * layout // settings.slots)

    switching, limit = _switching(settings, remembered, switch_costs, outside), settings.max_response_tokens

    def saving(factors: Factors | None) -> dict[tuple[int, int], float]:
        return {
            (size, number): seconds
            for number in sorted({present, *fleets})
            for size, seconds in _saved_by_switches(switching, number, lengths, limit, horizon, seed, factors).items()
        }

    saved = saving(None)
    # One race stands for all that are compared: a play for each would cost more than they differ.
    factors = next((plan.factors for plan in candidates.plans if plan.factors is not None), None)
    in_race = saving(factors) if candidates.is_undecided and factors is not None else {}

    def planner(
        candidates: CandidatePlans, fleet: EngineFleet, size: int = layout, number: int = present
    ) -> RoundPlanner:
        of = size, number
        its = replace(costs, saved=saved.get(of, 0.0), saved_in_race=in_race.get(of, 0.0))
        return RoundPlanner(candidates, fleet, lengths, its, horizon, seed)

    chosen = SelectedPlan(candidates.reference)
    if candidates.is_undecided:
        decision = decide(planner(candidates, fleet), in_force=rounds[-1].chosen.plan)
        if decision is None:
            why = f"a round costs more to predict than {PILOT_EVENTS:,} events of the engine model"
            return _unforeseen(candidates, why)
        chosen = _decided(decision, lengths, horizon, len(rounds), saved.get((layout, present)))
    plan, following = CandidatePlans((chosen.plan,)), _next(chosen.plan, horizon)
    if following[0] is RoundKind.SHORT and not (in_race and factors == chosen.plan.factors):
        in_race = saving(chosen.plan.factors)

    def predicted(fleet: EngineFleet, size: int = layout, number: int = present) -> float | None:
        return planner(plan, fleet, size, number).predict(*following)

    layouts = _layouts(remembered, fleet, most_tokens, settings.tensor_parallel_sizes, outside)
    return replace(
        chosen,
        layouts=_rounded((size, predicted(its, size)) for size, its in sorted(layouts.items())),
        machines=_rounded((number, predicted(its, number=number)) for number, its in sorted(fleets.items())),
    )


def _rounded(predicted: Iterable[tuple[int, float | None]]) -> tuple[tuple[int, float], ...]:
    return tuple((number, round(seconds, 3)) for number, seconds in predicted if seconds is not None)


def _switching(
    settings: Settings, remembered: Remembered, switch_costs: SwitchCosts | None, outside: OutsideTime
) -> Machine | None:
    """Return a machine that switches its layout inside rounds; None if machines do not.

    `switch_costs`: None if the policy of switches is not asked any more."""
    rules, layout = settings.switch_rules, remembered.rounds[-1].report.tensor_parallel_size
    if rules is None or layout is None or switch_costs is None:
        return None
    speeds = {**remembered.elsewhere, layout: remembered.alone or remembered.beside}
    return Machine(sized_engines(speeds, switch_costs.kv, outside), settings.slots, switch_costs, rules)


def _saved_by_switches(
    machine: Machine | None,
    machines: int,
    lengths: LengthModel,
    limit: int,
    horizon: PlanningHorizon,
    seed: str,
    factors: Factors | None,
) -> dict[int, float]:
    """Return the seconds that layout switches save in a round on this many machines, by the size in which it begins.

    Empty if machines do not switch, or fewer than two of their sizes were measured. `limit`: tokens of a response.
    `factors`: of a race; None if the last response ends the round."""
    if machine is None:
        return {}
    stages, race = _stages(lengths, horizon, machines, f"{seed}/switches", factors)
    return switch_gains(machine, stages, lengths.observed, limit, race)


def _stages(
    lengths: LengthModel, horizon: PlanningHorizon, machines: int, seed: str, factors: Factors | None
) -> tuple[list[list[Asked]], Race | None]:
    """Draw stages of one machine; return them with what they keep, None for all.

    Without a race a machine has its share of the responses. With one it has its share of the prompts, so that a group
    is complete where it is generated."""
    launched = factors or Factors(1, 1)
    count = ceil_product(launched.prompts, horizon.prompts)
    responses = ceil_product(launched.responses, horizon.responses)
    stages = []
    for draw in range(stages_to_draw(count * responses // machines)):
        prompts = lengths.draw(Random(f"{seed}/{draw}"), count, responses)
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


def _decided(
    decision: PlanDecision, lengths: LengthModel, horizon: PlanningHorizon, rounds: int, saved: float | None
) -> SelectedPlan:
    seen = f"{len(lengths)} responses ({lengths.stopped} of them stopped)"
    basis = f"; by {seen} and the speed of the engines in {rounds} rounds"
    if saved is not None:
        basis += f"; layout switches save {saved:.3g} s where no race ends the round"
    predicted, following = decision.prediction, _next(decision.plan, horizon)
    seconds, explained = round(predicted.of(*following), 3), round(predicted.explained(*following), 3)
    return SelectedPlan(decision.plan, decision.reason + basis, seconds, round(decision.speedup, 3), explained)


def _next(plan: Plan, horizon: PlanningHorizon) -> tuple[RoundKind, int]:
    """Return the kind of the next round by this plan, and how many of its prompts come from the queue."""
    opening = next_round(horizon.prompts, horizon.responses, plan.factors, horizon.queued, horizon.rounds_left)
    return opening.shape.kind, opening.queued


def _since(remembered: Remembered) -> str:
    return f" since lengths changed in round {remembered.since}" if remembered.since else ""


def _past(one: RememberedRound, prompts: PromptSource) -> PastRound:
    return PastRound(
        one.report.round,
        {
            key: PromptLengths(max(1, len(prompts.prompt(key).token_ids)), prompt.responses, prompt.filtered)
            for key, prompt in one.prompts.items()
        },
        frozenset(key for key, prompt in one.prompts.items() if prompt.queued),
    )


def _stage(remembered: Remembered, longest: int) -> EngineFleet | None:
    """Return the engines as last measured; None without a measurement.

    Generated responses of `longest` tokens have fitted, whatever the reported KV cache size."""
    latency = fit_latency(remembered.alone or remembered.beside)
    seen = [one.speed for one in remembered.rounds if one.speed is not None and one.speed.replicas]
    if latency is None or not seen:
        return None
    return EngineFleet(
        latency, seen[-1].replicas, max(seen[-1].kv_tokens or UNBOUNDED, longest), seen[-1].max_running or ANY_NUMBER
    )


def _with_outside(fleet: EngineFleet, outside: OutsideTime) -> EngineFleet:
    most = outside.responses(fleet.max_sequences)
    return replace(fleet, latency=outside.latency(fleet.latency), max_sequences=most)


def _layouts(
    remembered: Remembered, fleet: EngineFleet, longest: int, sizes: Collection[int], outside: OutsideTime
) -> dict[int, EngineFleet]:
    """Return the same accelerators in each measured TP size among `sizes`; empty for fewer than two sizes."""
    layout = remembered.rounds[-1].report.tensor_parallel_size
    if layout is None:
        return {}
    fleets = {layout: fleet}
    for size, speeds in remembered.elsewhere.items():
        latency, replicas, seen = fit_latency(speeds), fleet.replicas * layout // size, speeds[-1]
        if latency is not None and replicas:
            kv_tokens = max(seen.kv_tokens or UNBOUNDED, longest)
            other = EngineFleet(latency, replicas, kv_tokens, seen.max_running or ANY_NUMBER)
            fleets[size] = _with_outside(other, outside)
    usable = {size: one for size, one in fleets.items() if size in sizes}
    return usable if len(usable) > 1 else {}


def _machines(remembered: Remembered, fleet: EngineFleet, settings: Settings) -> dict[int, EngineFleet]:
    """Return one machine less, the present number, and one more, as far as the operator may choose them.

    Empty for fewer than two numbers."""
    layout = remembered.rounds[-1].report.tensor_parallel_size
    if layout is None or fleet.replicas * layout % settings.slots:
        return {}
    present = fleet.replicas * layout // settings.slots
    each = settings.slots // layout
    numbers = [number for number in (present - 1, present, present + 1) if number in settings.machines]
    return {number: replace(fleet, replicas=number * each) for number in numbers} if len(numbers) > 1 else {}


def _costs(remembered: Remembered, updates: Sequence[tuple[float, float]], fleet: EngineFleet) -> Costs:
    reports = [one.report for one in remembered.rounds]
    update, token = update_costs(updates)
    return Costs(
        reward=fmean(report.reward_delay_seconds or 0.0 for report in reports),
        update=update,
        token=token,
        broadcast=fmean(report.broadcast_seconds or 0.0 for report in reports),
        stream_slowdown=max(1.0, slowdown(fleet.latency, remembered.beside)),
    )


def _update(one: RememberedRound, past: PastRound, group_size: int) -> tuple[float, float]:
    """Return the tokens that a round's update trained on after generation, and its seconds."""
    report, responses = one.report, one.report.responses or 0
    prompt_tokens = fmean(prompt.prompt_tokens for prompt in past.prompts.values())
    early = min(1.0, (report.early_groups or 0) * group_size / responses) if responses else 0.0
    tokens = responses * ((report.mean_response_tokens or 0.0) + prompt_tokens)
    return tokens * (1 - early), report.training_seconds or 0.0
