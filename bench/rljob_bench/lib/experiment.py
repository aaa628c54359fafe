"""Trial: one job of a setting, played to its end, and what it took for each prompt that was trained on.

Rounds differ: a short one is cheap because of what it puts off. So a job is charged whole, from its first launch to the
last weights, and it is of a number of rounds after which the long-prompt queue is empty: all jobs of a setting train
on the very same prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from rljob_api.status import RoundKind, RoundReport
from rljob_bench.lib.cluster import BenchmarkCluster
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.scheduling.reward_timeout import TimeoutRule
from rljob_runtime.simulator.core.events import Event, Reported
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.peers.assumptions import STANDARD, Setting
from rljob_runtime.simulator.peers.code_rewards import Programs
from rljob_runtime.simulator.run import simulate
from rljob_runtime.simulator.scenario import Scenario

LONGEST_PROMPT = 4096
"""Prompts are cut there; the longest of PolyTrace's that are public has about 3,100 tokens."""


@dataclass(frozen=True)
class Technique:
    """What a job of the benchmark has switched on.

    `timeout`: of the reward's programs; None for rewards that take no time. With `auto` the job finds factors and
    streaming itself.
    """

    name: str
    prompt_factor: float | None = None
    """None: no tail batching."""
    response_factor: float | None = None
    stream: bool = False
    timeout: TimeoutRule | None = None
    planner: bool = False
    """Machines may be laid out with every larger tensor parallel size too, or with those of them that were measured;
    the operator's policy chooses."""
    loans: bool = False
    """Rollout machines may be loaned to training."""
    auto: bool = False
    adapt: Callable[[Settings], Settings] | None = None
    """See `scenario.Scenario`."""


PLAIN = Technique("plain")
TAIL = Technique("tail batching", 1.25, 1.25)
AUTO = Technique("Auto", auto=True)


@dataclass(frozen=True)
class Experiment:
    """The rounds of a job."""

    technique: Technique
    reports: tuple[RoundReport, ...]
    prompts: int
    """Trained on, each once."""

    def seconds(self, reward_stage: float = 0.0) -> float:
        """Return the seconds of the complete job.

        `reward_stage`: seconds after generation and before the update, in each round.
        """
        return sum(report.seconds or 0.0 for report in self.reports) + reward_stage * len(self.reports)

    def prompt_seconds(self, reward_stage: float = 0.0) -> float:
        """Return the seconds for each prompt trained on."""
        return self.seconds(reward_stage) / self.prompts

    @property
    def generation(self) -> float:
        """Seconds of generation in the whole job."""
        return sum(report.generation_seconds or 0.0 for report in self.reports)

    def first(self, rounds: int) -> Experiment:
        """Return the job of its first `rounds` rounds.

        It is exact for a plain job only: another pays later for what it deferred.
        """
        assert all(report.kind is not RoundKind.SHORT for report in self.reports)
        return replace(self, reports=self.reports[:rounds], prompts=self.prompts * rounds // len(self.reports))

    def mean(self, field: str, *kinds: RoundKind) -> float | None:
        """Return the mean of a field over the rounds of these kinds; None where there is none."""
        values = [getattr(report, field) for report in self.reports if report.kind in kinds]
        return round(sum(values) / len(values), 3) if values else None

    def row(self, reward_stage: float = 0.0) -> dict[str, object]:
        """Return a row of the benchmark's table."""
        tokens = sum(report.tokens or 0 for report in self.reports)
        discarded = sum(report.discarded_tokens or 0 for report in self.reports)
        return {
            "technique": self.technique.name,
            "rounds": len(self.reports),
            "short_rounds": sum(report.kind is RoundKind.SHORT for report in self.reports),
            "seconds": round(self.seconds(reward_stage), 3),
            "generation_seconds": round(self.generation, 3),
            "training_seconds": round(sum(report.training_seconds or 0.0 for report in self.reports), 3),
            "overlap_seconds": round(sum(report.overlap_seconds or 0.0 for report in self.reports), 3),
            "short_round_seconds": self.mean("seconds", RoundKind.SHORT),
            "long_round_seconds": self.mean("seconds", RoundKind.PLAIN, RoundKind.LONG),
            "preemptions": sum(report.preemptions or 0 for report in self.reports),
            "largest_tensor_parallel_size": max(report.tensor_parallel_size or 0 for report in self.reports),
            "machines_loaned": sum(report.loaned_machines or 0 for report in self.reports),
            "plans": dict(Counter(report.plan or "as asked" for report in self.reports)),
            "discarded_token_share": round(discarded / tokens, 4),
        }


def cluster_of(setting: Setting, technique: Technique = PLAIN, *, colocated: bool) -> BenchmarkCluster:
    """Return the machines. Colocated, all of them generate, and all of them train."""
    size, machine = setting.tensor_parallel, setting.accelerators_per_machine
    larger = tuple(2**n * size for n in range(1, 4) if 2**n * size <= machine)
    if setting.engines is not None:
        larger = tuple(each for each in larger if each in setting.engines.sizes)
    generating = setting.accelerators if colocated else setting.accelerators - setting.trainer_accelerators
    return BenchmarkCluster(
        setting.model,
        setting.accelerator,
        machines=generating // machine,
        trainer_accelerators=setting.accelerators if colocated else setting.trainer_accelerators,
        accelerators_per_machine=machine,
        tensor_parallel=size,
        wider=larger if technique.planner else (),
        lendable=technique.loans,
        engines=setting.engines,
    )


def programs_of(timeout: TimeoutRule) -> Programs:
    """Return the programs of the assumptions, under this timeout."""
    assumed = STANDARD
    return Programs(assumed.reward_seconds.value, assumed.right_share.value, assumed.endless_share.value, timeout)


def scenario_of(setting: Setting, technique: Technique, rounds: int, seed: int, *, colocated: bool) -> Scenario:
    """Return the job. Colocated, nothing is charged for the change between generation and training."""
    cluster = cluster_of(setting, technique, colocated=colocated)
    base = cluster.scenario(setting.workload, rounds, setting.prompts, setting.responses, setting.longest, seed)
    return replace(
        base,
        # An epoch is a round's prompts: of a trace, an epoch is a recorded step.
        prompts_an_epoch=setting.prompts,
        tail_factor=technique.prompt_factor,
        response_factor=technique.response_factor,
        stream_training=technique.stream,
        auto=technique.auto,
        adapt=technique.adapt,
        programs=None if technique.timeout is None else programs_of(technique.timeout),
        reward_seconds=0.0,
        max_prompt_tokens=LONGEST_PROMPT,
    )


def run(setting: Setting, technique: Technique, rounds: int, seed: int, *, colocated: bool) -> Experiment:
    """Play the job. Raises `RuntimeError` when an invariant is broken: then there is no figure."""
    reports: dict[int, RoundReport] = {}

    def watch(event: Event) -> None:
        if isinstance(event, Reported) and (report := event.status.last_round) is not None:
            reports[report.round] = report

    scenario = scenario_of(setting, technique, rounds, seed, colocated=colocated)
    outcome = simulate(scenario, FaultPlan(), [watch])
    if outcome.violation is not None:
        raise RuntimeError(f"{setting.name}, {technique.name}: {outcome.violation}")
    return Experiment(technique, tuple(reports[number] for number in sorted(reports)), rounds * setting.prompts)


def speedup(baseline: Experiment, experiment: Experiment, stage: float = 0.0, experiment_stage: float = 0.0) -> float:
    """How many times as many prompts are trained on in the same time. The stages are synchronous rewards."""
    return baseline.prompt_seconds(stage) / experiment.prompt_seconds(experiment_stage)


def ideal_seconds(setting: Setting, plain: Experiment) -> float:
    """Return the seconds of the plain job if no accelerator ever waited.

    Each token comes at the rate of a full batch, updates run on all accelerators, and there is no reward. No schedule
    of the same work is quicker; the fixed costs of rounds stay.
    """
    cluster = cluster_of(setting, colocated=True)
    engine, tokens = cluster.engine(), sum(report.tokens or 0 for report in plain.reports)
    mean = tokens / (plain.prompts * setting.responses)
    # On average a running response is half done.
    batch = max(1, min(engine.max_sequences, int(engine.kv_tokens / (mean / 2))))
    generation = (
        tokens * engine.latency.step(batch, batch * mean / 2) / batch / (setting.accelerators / setting.tensor_parallel)
    )
    costs = cluster.costs()
    fixed = len(plain.reports) * costs.step + sum(report.broadcast_seconds or 0.0 for report in plain.reports)
    return generation + tokens * costs.token + fixed
