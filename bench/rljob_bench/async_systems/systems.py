"""Systems: those of Laminar's evaluation by name, each on a layout of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from rljob_api.spec.training import Repack
from rljob_bench.async_systems.asynchronous import Job, Policy
from rljob_bench.async_systems.groups import Prompts
from rljob_bench.async_systems.hardware import ACCELERATORS_PER_MACHINE, Hardware, Layout
from rljob_bench.async_systems.outcome import Outcome
from rljob_bench.async_systems.partial import PartialJob
from rljob_bench.async_systems.staged import Batches, one_step, stream, synchronous
from rljob_runtime.scheduling.asynchronous.repack import RepackRules
from rljob_runtime.simulator.peers.assumptions import LAMINAR_JOB, STANDARD, LaminarJob, LaminarModel


class System(StrEnum):
    """Laminar §8, Baselines; `NO_REPACK` and `OURS` are RLJob."""

    SYNCHRONOUS = "synchronous"
    ONE_STEP = "one-step staleness"
    STREAM = "stream generation"
    PARTIAL = "partial rollout"
    NO_REPACK = "ours without repack"
    OURS = "ours"

    @property
    def word(self) -> str:
        """Its name as a part of a figure's."""
        return self.value.replace(" ", "_").replace("-", "_")


BATCHWISE = (System.SYNCHRONOUS, System.ONE_STEP, System.STREAM)


@dataclass(frozen=True)
class Window:
    """The updates that are simulated: those before the measured ones, which fill the buffers, and the measured ones.

    The systems that go batch by batch are the same in each round but for the lengths, and simulate the measured ones
    only.
    """

    warm_up: int
    updates: int


def policy_of(job: LaminarJob = LAMINAR_JOB) -> Policy:
    """RLJob's defaults."""
    repack = Repack()
    return Policy(
        capacity=job.capacity_rounds,
        repack=RepackRules(repack.kv_cache_threshold, repack.max_batch),
        interval=repack.interval_seconds,
        move_seconds=STANDARD.move_seconds.value,
    )


def play(
    system: System, hardware: Hardware, prompts: Prompts, window: Window, job: LaminarJob = LAMINAR_JOB
) -> Outcome:
    """Simulate one job of a system.

    Partial rollout has RLJob's admission; with as much open as its replicas take, it computes more contexts again.
    """
    match system:
        case System.SYNCHRONOUS:
            return synchronous(Batches(hardware, prompts), window.updates)
        case System.ONE_STEP:
            return one_step(Batches(hardware, prompts), window.updates)
        case System.STREAM:
            return stream(Batches(hardware, prompts), window.updates, job.minibatches)
        case System.PARTIAL:
            return PartialJob(hardware, prompts, job.capacity_rounds).play(window.warm_up, window.updates)
        case System.NO_REPACK:
            policy = replace(policy_of(job), repack=None)
            return Job(hardware, prompts, policy).play(window.warm_up, window.updates)
        case System.OURS:
            return Job(hardware, prompts, policy_of(job)).play(window.warm_up, window.updates)


def printed_layout(system: System, model: LaminarModel, scale: int) -> Layout:
    """Return the layout of Laminar's Table 2. `scale`: from 0, the smallest."""
    total = model.accelerators[scale]
    match system:
        case System.SYNCHRONOUS:
            return Layout(model.model, total, None, model.batch_tensor_parallel)
        case System.ONE_STEP | System.STREAM:
            return Layout(model.model, total, model.batch_trainers[scale], model.batch_tensor_parallel)
        case System.PARTIAL:
            return Layout(model.model, total, model.partial_trainers[scale], model.tensor_parallel)
        case System.NO_REPACK | System.OURS:
            return Layout(model.model, total, model.trainers[scale], model.tensor_parallel)


def layouts(system: System, model: LaminarModel, scale: int) -> Iterator[Layout]:
    """Yield the layouts among which the best is searched, the printed one first.

    Eighths of the accelerators train. Replicas are as wide as printed; those of the systems that go batch by batch also
    twice as wide, which shortens their tails.
    """
    printed = printed_layout(system, model, scale)
    yield printed
    total = printed.accelerators
    sizes = (
        (printed.tensor_parallel, 2 * printed.tensor_parallel) if system in BATCHWISE else (printed.tensor_parallel,)
    )
    for size in sizes:
        if size > ACCELERATORS_PER_MACHINE:
            continue
        if system is System.SYNCHRONOUS:
            found = [Layout(model.model, total, None, size)]
        else:
            machine = ACCELERATORS_PER_MACHINE
            shares = sorted({max(machine, total * eighths // 8 // machine * machine) for eighths in range(1, 8)})
            found = [Layout(model.model, total, trainers, size) for trainers in shares if trainers < total]
        yield from (layout for layout in found if layout != printed)


@dataclass(frozen=True)
class Found:
    """A layout and what a system did on it."""

    layout: Layout
    outcome: Outcome


def best(system: System, model: LaminarModel, scale: int, prompts: Prompts, window: Window, search: Window) -> Found:
    """Return the best in `window` of the printed layout and the two with the highest throughput in `search`.

    A short search still trains on what the warm-up has left over, which favours layouts with many trainers.
    """
    every = list(layouts(system, model, scale))
    ranked = sorted(every, key=lambda layout: -play(system, layout.hardware(), prompts, search).throughput)
    chosen = dict.fromkeys([every[0], *ranked[:2]])
    found = [Found(layout, play(system, layout.hardware(), prompts, window)) for layout in chosen]
    return max(found, key=lambda one: one.outcome.throughput)
