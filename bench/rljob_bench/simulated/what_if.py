"""Auto against the truth, without a coordinator: rounds run on one engine, plans are chosen on another.

What the job observes is what a store would have kept: lengths of past rounds, stopped responses as stopped.

This is how the margins of `planner` were found and are kept: no workload may lose more than 2 % by Auto, also when the
engine is 30 % off its model in any of its coefficients.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from rljob_api.status import RoundKind
from rljob_runtime.perf_model.hardware import H800
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import MODELS
from rljob_runtime.perf_model.roofline import memory, roofline
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.round_planner.length_model import LengthModel, PromptLengths
from rljob_runtime.scheduling.round_planner.planner import (
    Costs,
    PlanningHorizon,
    RoundPlanner,
    decide,
    has_enough_history,
)
from rljob_runtime.scheduling.round_planner.plans import CandidatePlans, Plan, candidate_plans
from rljob_runtime.scheduling.round_planner.round_history import PastRound, history_start, population, rounds_considered
from rljob_runtime.scheduling.round_planner.round_simulator import (
    EngineFleet,
    PromptDemand,
    SimulatedRound,
    simulate_round,
)
from rljob_runtime.scheduling.round_planner.survival import LengthObservation
from rljob_runtime.scheduling.tail_batching import next_round
from rljob_runtime.workloads import open_workload
from rljob_runtime.workloads.workload import Workload

PERTURBATION = 0.3
"""How far each coefficient of the engine may be off its model."""


def perturbed(latency: LatencyModel, random: Random, by: float = PERTURBATION) -> LatencyModel:
    """Return an engine with each coefficient off by up to this share, each by its own."""

    def off() -> float:
        return 1 + by * random.uniform(-1, 1)

    fixed, slope = off(), off()
    first = latency.knots[0][1]
    return LatencyModel(
        tuple((batch, fixed * first + slope * (seconds - first)) for batch, seconds in latency.knots),
        latency.context_token_seconds * off(),
        latency.prefill_seconds * off(),
        latency.prefill_token_seconds * off(),
        latency.prefill_square_seconds * off(),
    )


@dataclass(frozen=True)
class Job:
    """`model`: what the job believes of its engines; `engines`: what they are. The trainer's costs are known."""

    workload: Workload
    prompts: int
    responses: int
    rounds: int
    limit: int
    model: EngineFleet
    engines: EngineFleet
    costs: Costs = field(default_factory=Costs)
    seed: int = 0
    then: tuple[int, Workload] | None = None
    """From this round on lengths are those of another workload."""


@dataclass
class PlanExperiment:
    """What came of it: seconds of each round, the plans, and predicted seconds where something was predicted."""

    seconds: list[float] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    predicted: list[float | None] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(self.seconds)


def play(job: Job, choices: CandidatePlans) -> PlanExperiment:
    """All rounds of the job."""
    return _Play(job, choices).to_the_end()


class _Play:
    def __init__(self, job: Job, choices: CandidatePlans) -> None:
        self._job = job
        self._choices = choices
        self._past: list[PastRound] = []
        self._whole: list[int] = []
        self._believed: list[tuple[int, float, float | None]] = []
        """Rounds with their seconds, and those that were explained."""
        self._queue: list[PromptKey] = []
        self._attempts: dict[PromptKey, int] = {}
        self._cursor = self._fresh()
        self.experiment = PlanExperiment()

    def to_the_end(self) -> PlanExperiment:
        plan = self._choices.reference
        for step in range(1, self._job.rounds + 1):
            plan = self._play_round(step, plan)
        return self.experiment

    def _fresh(self) -> Iterator[PromptKey]:
        index = 0
        while True:
            yield PromptKey(0, index)
            index += 1

    def _play_round(self, step: int, in_force: Plan) -> Plan:
        job, left = self._job, self._job.rounds - step + 1
        planner = self._planner(step, left)
        decision = decide(planner, in_force) if planner is not None else None
        plan = decision.plan if decision is not None else self._choices.reference
        opening = next_round(job.prompts, job.responses, plan.factors, len(self._queue), left)
        queued = self._queue[: opening.queued]
        keys = [*queued, *(next(self._cursor) for _ in range(opening.fresh))]
        workload = job.then[1] if job.then is not None and step >= job.then[0] else job.workload
        asked = [self._ask(workload, key, opening.shape.responses) for key in keys]
        went = simulate_round(job.engines, asked, len(keys), job.prompts, job.responses, job.costs.reward)
        self._queue = [*self._queue[len(queued) :], *(keys[lost] for lost in went.lost)]
        self._remember(step, keys, asked, went, queued)
        prediction = decision.prediction if decision is not None else None
        self.experiment.plans.append(plan)
        self.experiment.seconds.append(job.costs.round(went, plan.stream))
        self.experiment.predicted.append(prediction.of(opening.shape.kind, opening.queued) if prediction else None)
        explained = prediction.explained(opening.shape.kind, opening.queued) if prediction else None
        self._believed.append((step, self.experiment.seconds[-1], explained))
        if opening.shape.kind is RoundKind.PLAIN:
            self._whole.append(step)
        return plan

    def _ask(self, workload: Workload, key: PromptKey, responses: int) -> PromptDemand:
        attempt = self._attempts[key] = self._attempts.get(key, -1) + 1
        drawn = workload.prompt(0, key.index, responses, attempt)
        limit = self._job.limit
        lengths = tuple(min(limit, max(1, response.output_tokens)) for response in drawn.responses)
        return PromptDemand(max(1, int(drawn.input_tokens)), lengths)

    def _planner(self, step: int, left: int) -> RoundPlanner | None:
        job = self._job
        if not self._past or not self._choices.is_undecided:
            return None
        since = history_start(self._believed)
        steps = set(rounds_considered(step - 1, self._whole, since))
        lengths = LengthModel(population([one for one in self._past if one.step in steps]), job.limit)
        if not has_enough_history(min(step - since, step - 1), len(lengths)):
            return None
        horizon = PlanningHorizon(job.prompts, job.responses, left, len(self._queue))
        return RoundPlanner(self._choices, job.model, lengths, job.costs, horizon, seed=f"{job.seed}/{step}")

    def _remember(
        self,
        step: int,
        keys: Sequence[PromptKey],
        asked: Sequence[PromptDemand],
        went: SimulatedRound,
        queued: Sequence[PromptKey],
    ) -> None:
        prompts = {
            key: PromptLengths(
                one.prompt_tokens,
                tuple(
                    LengthObservation(went.stopped.get((number, sample), length), (number, sample) not in went.stopped)
                    for sample, length in enumerate(one.lengths)
                ),
            )
            for number, (key, one) in enumerate(zip(keys, asked, strict=True))
        }
        self._past.append(PastRound(step, prompts, frozenset(queued)))


def against(job: Job, choices: CandidatePlans) -> tuple[PlanExperiment, PlanExperiment]:
    """Return the job with these choices, and with their reference plan alone."""
    return play(job, choices), play(job, replace(choices, plans=choices.plans[:1]))


def main() -> None:
    """`python -m rljob_bench.simulated.what_if WORKLOAD…`: time of plain rounds over Auto's."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("workloads", nargs="+", help="generators by name, or folders of traces")
    parser.add_argument("--model", choices=sorted(MODELS), default="Qwen2.5-7B")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--then", help="lengths from round --at on")
    for name, default in (("prompts", 32), ("responses", 8), ("rounds", 24), ("seeds", 4), ("at", 13)):
        parser.add_argument(f"--{name}", type=int, default=default)
    told = parser.parse_args()
    shape = MODELS[told.model]
    latency = roofline(shape, H800, told.tensor_parallel)
    kv_tokens = memory(shape, H800, told.tensor_parallel).kv_tokens
    replicas = max(1, told.prompts * told.responses // 64)
    for workload in told.workloads:
        for seed in range(told.seeds):
            job = Job(
                open_workload(workload, seed),
                *(told.prompts, told.responses, told.rounds),
                limit=40_000,
                model=EngineFleet(latency, replicas, kv_tokens),
                engines=EngineFleet(perturbed(latency, Random(seed)) if seed else latency, replicas, kv_tokens),
                costs=Costs(reward=1.0, update=8.0, token=2e-6, broadcast=2.0),
                seed=seed,
                then=(told.at, open_workload(told.then, seed)) if told.then else None,
            )
            auto, plain = against(job, candidate_plans(None, None, None, stream=False))
            plans = ", ".join(f"{count} {plan}" for plan, count in Counter(map(str, auto.plans)).most_common())
            print(f"{workload}, seed {seed}: {plain.total / auto.total:.3f} ({plans})", flush=True)


if __name__ == "__main__":
    main()
