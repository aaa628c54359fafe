"""Round inputs: what the job's own rounds tell about the next one, and about it on other machines or in other sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.reporting.outside_time import outside_time
from rljob_runtime.coordinator.store.round_history import Remembered, RememberedRound
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.observed_speed import Speed, fit_latency, slowdown
from rljob_runtime.perf_model.outside_time import OutsideTime
from rljob_runtime.protocols import PromptSource
from rljob_runtime.scheduling.round_planner.length_model import LengthModel, PromptLengths
from rljob_runtime.scheduling.round_planner.planner import (
    FIRST_ROUNDS,
    MOST_FIRST_ROUNDS,
    Costs,
    PlanningHorizon,
    has_enough_history,
    update_costs,
)
from rljob_runtime.scheduling.round_planner.round_history import PastRound, population
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet
from rljob_runtime.scheduling.tail_batching import next_round

UNBOUNDED = 1 << 40
"""Tokens of a KV cache of unknown size."""
ANY_NUMBER = 1 << 20
"""Simultaneous requests of an engine without a known limit."""


@dataclass(frozen=True)
class RoundInputs:
    """What is known of the next round.

    `most_tokens`: of a prompt with its response. `fleet` and `costs` include the time that responses spend outside of
    engines. `size`: the tensor parallel size of the last round, 0 if it is unknown. `machines`: their present number.
    """

    remembered: Remembered
    lengths: LengthModel
    most_tokens: int
    fleet: EngineFleet
    costs: Costs
    outside: OutsideTime
    horizon: PlanningHorizon
    size: int
    machines: int

    def fleets_by_size(self, sizes: Collection[int]) -> dict[int, EngineFleet]:
        """Return the same accelerators in each measured TP size among `sizes`; empty for fewer than two sizes."""
        if not self.size:
            return {}
        fleets = {self.size: self.fleet}
        for size, speeds in self.remembered.elsewhere.items():
            latency, replicas, seen = fit_latency(speeds), self.fleet.replicas * self.size // size, speeds[-1]
            if latency is not None and replicas:
                fleets[size] = _with_outside(_engines(latency, replicas, seen, self.most_tokens), self.outside)
        usable = {size: one for size, one in fleets.items() if size in sizes}
        return usable if len(usable) > 1 else {}

    def fleets_by_machines(self, settings: Settings) -> dict[int, EngineFleet]:
        """Return one machine less, the present number, and one more, as far as the operator may choose them.

        Empty for fewer than two numbers."""
        if not self.size or self.fleet.replicas * self.size % settings.slots:
            return {}
        present, each = self.machines, settings.slots // self.size
        numbers = [number for number in (present - 1, present, present + 1) if number in settings.machines]
        return {number: replace(self.fleet, replicas=number * each) for number in numbers} if len(numbers) > 1 else {}


def round_inputs(
    settings: Settings, remembered: Remembered, prompts: PromptSource, horizon: PlanningHorizon
) -> RoundInputs | str:
    """Return what the remembered rounds tell; else why they do not tell enough."""
    past = [_past(one, prompts) for one in remembered.rounds]
    updated = [(one, _past(one, prompts)) for one in remembered.updated or remembered.rounds]
    updates = [_update(one, its, horizon.responses) for one, its in updated]
    return inputs_of(settings, remembered, past, updates, horizon)


def inputs_of(
    settings: Settings,
    remembered: Remembered,
    past: Sequence[PastRound],
    updates: Sequence[tuple[float, float]],
    horizon: PlanningHorizon,
) -> RoundInputs | str:
    """Return the inputs of these rounds, as `round_inputs` does. `updates`: tokens and seconds of each update."""
    rounds = remembered.rounds
    responses = sum(len(prompt.responses) for one in past for prompt in one.prompts.values())
    if not has_enough_history(len(rounds), responses, settings.first_responses):
        since = f" since lengths changed in round {remembered.since}" if remembered.since else ""
        return (
            f"{len(rounds)} rounds with {responses} responses were seen{since}; {FIRST_ROUNDS} with "
            f"{settings.first_responses}, or {MOST_FIRST_ROUNDS} rounds, are needed to predict"
        )
    longest = max(prompt.prompt_tokens for one in past for prompt in one.prompts.values())
    most_tokens = longest + settings.max_response_tokens
    engines = _fleet(remembered, most_tokens)
    if engines is None:
        return "the engines have not been seen at work for long enough to predict"
    outside = outside_time([one.report for one in rounds])
    costs, fleet = _costs(remembered, updates, engines), _with_outside(engines, outside)
    size = rounds[-1].report.tensor_parallel_size or 0
    most_prompts = settings.rules(next_round(horizon.prompts, horizon.responses, None, 0, 1).shape).max_prompts
    return RoundInputs(
        remembered=remembered,
        lengths=LengthModel(population(past), settings.max_response_tokens),
        most_tokens=most_tokens,
        fleet=fleet,
        costs=replace(costs, reward=costs.reward + outside.fixed),
        outside=outside,
        horizon=replace(horizon, most_prompts=most_prompts),
        size=size,
        machines=max(1, fleet.replicas * size // settings.slots),
    )


def _past(one: RememberedRound, prompts: PromptSource) -> PastRound:
    return PastRound(
        one.report.round,
        {
            key: PromptLengths(max(1, len(prompts.prompt(key).token_ids)), prompt.responses, prompt.filtered)
            for key, prompt in one.prompts.items()
        },
        frozenset(key for key, prompt in one.prompts.items() if prompt.queued),
    )


def _update(one: RememberedRound, past: PastRound, group_size: int) -> tuple[float, float]:
    """Return the tokens that a round's update trained on after generation, and its seconds."""
    report, responses = one.report, one.report.responses or 0
    prompt_tokens = fmean(prompt.prompt_tokens for prompt in past.prompts.values())
    early = min(1.0, (report.early_groups or 0) * group_size / responses) if responses else 0.0
    tokens = responses * ((report.mean_response_tokens or 0.0) + prompt_tokens)
    return tokens * (1 - early), report.training_seconds or 0.0


def _fleet(remembered: Remembered, longest: int) -> EngineFleet | None:
    """Return the engines as last measured; None without a measurement.

    Generated responses of `longest` tokens have fitted, whatever the reported KV cache size."""
    latency = fit_latency(remembered.alone or remembered.beside)
    seen = [one.speed for one in remembered.rounds if one.speed is not None and one.speed.replicas]
    if latency is None or not seen:
        return None
    return _engines(latency, seen[-1].replicas, seen[-1], longest)


def _engines(latency: LatencyModel, replicas: int, seen: Speed, longest: int) -> EngineFleet:
    kv_tokens = max(seen.kv_tokens or UNBOUNDED, longest)
    return EngineFleet(latency, replicas, kv_tokens, seen.max_running or ANY_NUMBER)


def _with_outside(fleet: EngineFleet, outside: OutsideTime) -> EngineFleet:
    most = outside.responses(fleet.max_sequences)
    return replace(fleet, latency=outside.latency(fleet.latency), max_sequences=most)


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
