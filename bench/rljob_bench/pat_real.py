"""`rljob bench pat --real`: tensor parallel sizes that change inside a stage, on real engines of this machine.

One rollout machine of two cores: two engines of size 1, or one of size 2. The real coordinator, relays, store and
processes play jobs whose rounds differ in how they are generated (`lib.turns`): in each static size, with PAT's policy,
and with switches that are ordered. The rounds of a block have the same replayed lengths. PAT's round is the first one
with its lengths: its policy has seen other lengths only. The first block is not counted; it shows the speed of both
sizes.

Baselines: both static sizes, the better of the two in hindsight, and the size at which PAT's round began, without a
switch. Limit: the best sequence of at most three switches for these lengths, in the engine model of this run.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rljob_api import RLJob
from rljob_bench.lib.engine_switch import Restart, restart
from rljob_bench.lib.memory_watch import MemoryWatch
from rljob_bench.lib.random_llama import SHAPE, random_llama
from rljob_bench.lib.replay import ReplayBackend, StillTrainer
from rljob_bench.lib.replayed_job import (
    MAX_PROMPT_TOKENS,
    STAND_INS,
    Sizes,
    Steering,
    generated_lengths,
    play_replayed,
    replayed_job,
)
from rljob_bench.lib.turns import BlockLengths, Played, SizedTarget, Turn, Turns, Way
from rljob_bench.switch_figures import SwitchExperiment, figures, rows
from rljob_runtime.coordinator.core.settings import switch_rules
from rljob_runtime.local.run import local_places
from rljob_runtime.models.source import resolve
from rljob_runtime.protocols.remote import CallTimeouts
from rljob_runtime.ray_backend.actors import ActorPlacement
from rljob_runtime.ray_backend.backend import RayBackend
from rljob_runtime.ray_backend.local_ray import local_ray
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import read_key
from rljob_runtime.relay.segment import SHARED_MEMORY
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.rollout.engines.base import EngineSettings
from rljob_runtime.workloads import Workload

NAME = "pat-real"
SIZES = (1, 2)
PATIENT = CallTimeouts(command=300, poll=300, heartbeat=60)
"""Seconds. The job has one machine, so a busy machine must not count as lost."""
KV_BYTES = "1Gi"
"""KV cache of each accelerator. It is so large that no response waits for room."""
STAND_IN_LLAMA = "random weights; its texts mean nothing, its steps take as long as those of a trained model"


@dataclass(frozen=True)
class Setting:
    """Rounds of `prompts` x `responses`. `blocks`: of them that count.

    `planned`: rounds that make the switch that is planned, also where it is not worth it. `ordered`: rounds of switches
    there and back."""

    prompts: int
    responses: int
    blocks: int
    planned: int = 0
    ordered: int = 0

    @property
    def count(self) -> int:
        """Responses of a round."""
        return self.prompts * self.responses

    def turns(self) -> list[Turn]:
        """Return the rounds: the blocks that count, planned switches, and switches there and back.

        A policy knows the lengths of all earlier rounds, so a round that it decides is the first one with its lengths.
        """
        found = [turn for place in range(self.blocks + 1) for turn in self._compared(place)]
        # They start in the smallest size, and each static round follows the planned ones: either way follows its
        # size's engines as often as a change to them.
        planned = range(self.blocks + 1, self.blocks + 1 + self.planned)
        found += [Turn(block, way, SIZES[0]) for way in (Way.PLANNED, Way.STATIC) for block in planned]
        # A round may have time for one switch only: both directions are measured anyway.
        first = self.blocks + self.planned + 1
        return found + [Turn(first + number, Way.ORDERED, SIZES[number % len(SIZES)]) for number in range(self.ordered)]

    def _compared(self, place: int) -> list[Turn]:
        """Return the policy's round of the next block, among the static rounds of block `place`.

        Each way takes each place in as many blocks: a round follows its size's engines, or a change to them. The static
        rounds of block 0 are those that both speeds are learned from."""
        policy = [Turn(place + 1, Way.ADAPTIVE)] if place < self.blocks else []
        smallest, *others = [Turn(place, Way.STATIC, size) for size in SIZES]
        ways = ([smallest], policy, *([one] for one in others))
        first = (place - 1) % len(ways)
        return [turn for way in (*ways[first:], *ways[:first]) for turn in way]


@dataclass(frozen=True)
class Plan:
    """The sizes of the benchmark. `model` None: the random Llama. `apart`: seconds between two ordered switches."""

    model: str | None = None
    engine: str = "VLLM"
    dtype: str = "bfloat16"
    longest: int = 512
    apart: float = 0.7
    settings: tuple[Setting, ...] = field(default=(Setting(8, 8, 3, 2, ordered=2), Setting(32, 8, 3, 2)))

    def sizes(self, setting: Setting, rounds: int, model: str) -> Sizes:
        """Return the sizes of a job."""
        return Sizes(
            model=model,
            engine=self.engine,
            dtype=self.dtype,
            machines=1,
            rounds=rounds,
            prompts=setting.prompts,
            responses=setting.responses,
            longest=self.longest,
            concurrent=self.concurrent,
        )

    @property
    def concurrent(self) -> int:
        """Requests at a time on an engine: none waits, and all jobs use the same engines."""
        return max(setting.count for setting in self.settings)


QUICK = Plan(
    "package://rljob/toy", "Reference", "float32", longest=380, apart=0.02, settings=(Setting(8, 4, 1, 1, ordered=2),)
)
"""The reference engine computes the same in both sizes, so that this shows the parts of a switch only."""


def pat_real(*, quick: bool, seed: int) -> dict[str, Any]:
    """Measure; see the module's text."""
    plan = QUICK if quick else Plan()
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        shared = SHARED_MEMORY / Path(folder).name
        with local_places(Path(folder), shared) as placement:
            model = plan.model or str(random_llama(placement.models))
            first = job_of(plan, plan.settings[0], model, 1, seed)
            with local_ray(first), MemoryWatch(shared) as memory:
                experiment = asyncio.run(_in_turn(plan, model, placement, memory, seed))
    return {
        "bench": NAME,
        "seed": seed,
        "settings": {
            "quick": quick,
            **asdict(plan),
            **({"shape": asdict(SHAPE) | {"parameters": SHAPE.parameters}} if plan.model is None else {}),
            "stand_ins": STAND_INS | ({"model": STAND_IN_LLAMA} if plan.model is None else {}),
            "cores": len(os.sched_getaffinity(0)),
            "load_before": experiment.load,
        },
        "figures": figures(experiment),
        "rows": rows(experiment),
    }


def job_of(plan: Plan, setting: Setting, model: str, rounds: int, seed: int, version: int = 0) -> RLJob:
    """Return the job as it would be applied. `version`: of weights that are in the relays from jobs before."""
    return replayed_job(
        NAME,
        plan.sizes(setting, rounds, model),
        seed,
        version,
        adaptiveTensorParallel={"enabled": True},
        rollout={
            "machines": 1,
            "slotsPerMachine": max(SIZES),
            "tensorParallelSize": SIZES[0],
            "allowedTensorParallelSizes": list(SIZES),
            "engine": plan.engine,
            "engineOptions": {"maxConcurrentRequests": plan.concurrent, "kvCacheBytes": KV_BYTES},
        },
    )


@dataclass
class _Bench:
    """What the jobs have in common, one after the other on the same processes."""

    plan: Plan
    model: str
    placement: ActorPlacement
    machines: RayBackend
    trainer: Callable[[], StillTrainer]
    seed: int
    version: int = 0
    term: int = 0

    async def play(self, setting: Setting, turns: Sequence[Turn]) -> list[Played]:
        """Play a job of these rounds. Raises `RuntimeError` if a round began in another size than it should have."""
        self.term += 1
        job = job_of(self.plan, setting, self.model, len(turns), self.seed, self.version)
        rules = switch_rules(job.spec)
        assert rules is not None
        played = Turns(turns, rules, self.plan.apart)
        control = SizedTarget(job, played.size)
        lengths = BlockLengths(self.workload(setting), setting.prompts, setting.responses, turns)
        backend = ReplayBackend(self.machines, self.trainer(), lengths)
        status = await play_replayed(
            job,
            f"{setting.count} responses",
            backend,
            self.placement,
            self.term,
            [played.note, control.note],
            Steering(control, played, lambda coordinator: setattr(played, "coordinator", coordinator)),
        )
        self.version = status.weight_version or self.version
        for number, one in enumerate(played.played, start=1):
            began = one.report.tensor_parallel_size if one.report is not None else None
            if began != one.size:
                raise RuntimeError(f"round {number} of {setting.count} responses began in size {began}, not {one.size}")
        return played.played

    def workload(self, setting: Setting) -> Workload:
        """Return the lengths of a setting."""
        return generated_lengths(self.seed + setting.count, self.plan.longest)


async def _in_turn(
    plan: Plan, model: str, placement: ActorPlacement, memory: MemoryWatch, seed: int
) -> SwitchExperiment:
    """Play the jobs, after a short one that starts the processes in the first size; then restart an engine."""
    load = round(os.getloadavg()[0], 2)
    first = job_of(plan, plan.settings[0], model, 1, seed)
    folder = await asyncio.to_thread(resolve, model, placement.models)
    relay, dtype = RelaySettings.of(first.spec.relay), getattr(torch, plan.dtype)
    with Publisher(placement.shared_memory / "trainer-0", read_key(placement.relay_key), relay, dtype) as publisher:
        machines = RayBackend(first, placement, resource_of=lambda member: member.machine, timeouts=PATIENT)
        bench = _Bench(plan, model, placement, machines, lambda: StillTrainer(folder, publisher), seed)
        (warm_up,) = await bench.play(replace(plan.settings[0], blocks=0), [Turn(0, Way.STATIC, SIZES[0])])
        played = {setting.count: await bench.play(setting, setting.turns()) for setting in plan.settings}
        restarted = await asyncio.to_thread(_restart, plan, folder.path, placement, bench.version)
    lengths = {setting.count: bench.workload(setting) for setting in plan.settings}
    responses = {setting.count: (setting.prompts, setting.responses) for setting in plan.settings}
    return SwitchExperiment(played, warm_up, restarted, memory, lengths, responses, plan.longest, load)


def _restart(plan: Plan, folder: Path, placement: ActorPlacement, version: int) -> Restart:
    """Start an engine of the largest size from nothing, with the weights that the machine's relay has."""
    settings = EngineSettings(
        folder=folder,
        weights=placement.shared_memory / "rollout-0",
        dtype=plan.dtype,
        max_model_len=MAX_PROMPT_TOKENS + plan.longest,
        max_running=plan.concurrent,
        kv_cache_bytes=1 << 30,
        tensor_parallel=max(SIZES),
        transfers_kv=True,
    )
    return restart(settings, version, plan.engine)
