"""The benchmark `rljob bench laminar`: the systems that Laminar compares, and RLJob's asynchronous mode.

They run on 16 to 1,024 accelerators (Laminar's Fig. 11), on its splits between trainer and rollouts and, at the largest
scale, on the best split found.

Throughput is the paper's metric: tokens of prompts and responses trained on, a second. How the systems are modelled,
and what is left out: docs/internals/simulator/async-systems.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rljob_bench.async_systems.groups import Prompts
from rljob_bench.async_systems.ideal import throughput
from rljob_bench.async_systems.lengths import prompts_of, recorded, workload_of
from rljob_bench.async_systems.outcome import Outcome
from rljob_bench.async_systems.partial import PartialJob
from rljob_bench.async_systems.systems import Found, System, Window, best, play, printed_layout
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.simulator.peers.assumptions import (
    DAPO_LENGTHS,
    LAMINAR_JOB,
    LAMINAR_MODELS,
    MATH_LENGTHS,
    STANDARD,
    TABLE_1_LENGTHS,
    LaminarModel,
)
from rljob_runtime.workloads import Workload

GOAL_SPEEDUP, GOAL_SCALING, GOAL_STALENESS = 5.5, 0.7, 4
PRINTED = {
    System.ONE_STEP: "Laminar: 1.98x of it on average, up to 4.09x",
    System.STREAM: "Laminar: 1.93x of it on average, up to 4.06x",
    System.PARTIAL: "Laminar: 1.39x of it on average, up to 1.81x",
}


WINDOW = Window(warm_up=8, updates=8)
SEARCH = Window(warm_up=3, updates=3)
FULL = Window(warm_up=6, updates=3)
"""Of partial rollout with full replicas: that many responses take their time."""


@dataclass(frozen=True)
class Plan:
    """What is played. `searched`: whether the best split is looked for at the largest scale."""

    models: tuple[LaminarModel, ...] = LAMINAR_MODELS
    window: Window = WINDOW
    search_window: Window = SEARCH
    full_window: Window = FULL
    searched: bool = True


QUICK = Plan(
    models=(
        replace(
            LAMINAR_MODELS[0],
            accelerators=(16, 256),
            batch_trainers=(8, 40),
            partial_trainers=(8, 128),
            trainers=(8, 192),
        ),
    ),
    window=Window(warm_up=2, updates=2),
    searched=False,
)


def laminar(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
    """All systems on generated lengths, or, with `traces`, on recorded ones instead. Raises `TraceError`."""
    plan = QUICK if quick else Plan()
    lengths = lengths_of(seed, traces, quick=quick)
    figures: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for place, (name, workload) in enumerate(lengths.items()):
        prompts = prompts_of(workload)
        for model in plan.models:
            # The first lengths at every scale, the others at the smallest and the largest.
            measured = Measured.of(name, model, prompts, plan, all_scales=not place)
            figures += measured.figures()
            rows += measured.rows()
    return {
        "bench": "laminar",
        "seed": seed,
        "settings": {"quick": quick, "lengths": list(lengths), **assumed()},
        "figures": figures,
        "rows": rows,
    }


def lengths_of(seed: int, traces: Path | None, *, quick: bool) -> Mapping[str, Workload]:
    """By name."""
    if traces is not None:
        return recorded(traces, seed)
    generated = (DAPO_LENGTHS,) if quick else (DAPO_LENGTHS, TABLE_1_LENGTHS, MATH_LENGTHS)
    return {one.name: workload_of(one, seed) for one in generated}


def assumed() -> dict[str, Any]:
    """Return what the figures rest on."""
    return {
        "assumptions": {name: asdict(assumption) for name, assumption in STANDARD.table()},
        "job": asdict(LAMINAR_JOB),
        "lengths_sources": [asdict(one) for one in (DAPO_LENGTHS, TABLE_1_LENGTHS, MATH_LENGTHS)],
        "splits": [asdict(model) for model in LAMINAR_MODELS],
    }


@dataclass(frozen=True)
class Measured:
    """A model with one kind of lengths."""

    lengths: str
    model: LaminarModel
    prompts: Prompts
    printed: Mapping[tuple[System, int], Found]
    """By system and scale, on the paper's split."""
    best: Mapping[System, Found]
    """At the largest scale; empty where it was not looked for."""
    full: Found | None
    """Partial rollout with as much open as replicas take, at the largest scale."""

    @classmethod
    def of(cls, lengths: str, model: LaminarModel, prompts: Prompts, plan: Plan, *, all_scales: bool) -> Measured:
        """Play them."""
        last = len(model.accelerators) - 1
        scales = range(last + 1) if all_scales else sorted({0, last})
        printed = {}
        for system in System:
            for scale in scales:
                layout = printed_layout(system, model, scale)
                printed[system, scale] = Found(layout, play(system, layout.hardware(), prompts, plan.window))
        found, full = {}, None
        if plan.searched and all_scales:
            found = {system: best(system, model, last, prompts, plan.window, plan.search_window) for system in System}
            layout = printed_layout(System.PARTIAL, model, last)
            job = PartialJob(layout.hardware(), prompts)
            full = Found(layout, job.play(plan.full_window.warm_up, plan.full_window.updates))
        return cls(lengths, model, prompts, printed, found, full)

    @property
    def scales(self) -> list[int]:
        return sorted({scale for _, scale in self.printed})

    def figures(self) -> Iterator[dict[str, Any]]:
        """At the largest scale; and how throughput scales up to it."""
        first, last = self.scales[0], self.scales[-1]
        name = f"{self.lengths}.{self.model.name}-{self.model.accelerators[last]}"
        ours = self.printed[System.OURS, last]
        rounds = len(ours.outcome.updates)
        ideal = throughput(ours.layout, self.prompts, rounds)
        for system in System:
            if system is System.OURS:
                continue
            baseline = self.printed[system, last].outcome.throughput
            goal, anchor = None, PRINTED.get(system)
            if system is System.SYNCHRONOUS:
                goal, anchor = GOAL_SPEEDUP, "Laminar: 2.56x on average, up to 5.49x"
            yield figure(
                f"{name}.ours_over_{system.word}", ours.outcome.throughput / baseline, goal, anchor, ideal / baseline
            )
        if self.full is not None:
            yield figure(
                f"{name}.ours_over_partial_rollout_with_full_replicas",
                ours.outcome.throughput / self.full.outcome.throughput,
                None,
                PRINTED[System.PARTIAL],
                ideal / self.full.outcome.throughput,
            )
        if self.best:
            best_synchronous = self.best[System.SYNCHRONOUS].outcome.throughput
            found = self.best[System.OURS].outcome.throughput
            yield figure(
                f"{name}.best_split.ours_over_synchronous",
                found / best_synchronous,
                GOAL_SPEEDUP,
                None,
                ideal / best_synchronous,
            )
            yield figure(
                f"{name}.best_split.ours_over_best_other",
                found
                / max(
                    self.best[one].outcome.throughput for one in System if one not in (System.OURS, System.NO_REPACK)
                ),
            )
        yield figure(
            f"{name}.staleness_when_whole_max",
            ours.outcome.staleness(inherent=True).worst,
            GOAL_STALENESS,
            "Laminar §8: 4",
            unit="updates",
            better="lower",
        )
        grown = self.model.accelerators[last] / self.model.accelerators[first]
        for system in (System.SYNCHRONOUS, System.PARTIAL, System.OURS):
            ratio = self.printed[system, last].outcome.throughput / self.printed[system, first].outcome.throughput
            goal = GOAL_SCALING if system is System.OURS else None
            anchor = "Laminar: 0.537, 0.682 with 32B" if system is System.OURS else None
            yield figure(f"{name}.scaling_of_{system.word}", ratio / grown, goal, anchor, 1.0)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each job."""
        for (system, scale), found in self.printed.items():
            yield self._row(system, scale, found, "printed")
        for system, found in self.best.items():
            yield self._row(system, self.scales[-1], found, "best found")
        if self.full is not None:
            yield self._row(System.PARTIAL, self.scales[-1], self.full, "printed, replicas full")

    def _row(self, system: System, scale: int, found: Found, split: str) -> dict[str, Any]:
        synchronous = self.printed[System.SYNCHRONOUS, scale].outcome
        return {
            "lengths": self.lengths,
            "model": self.model.name,
            "accelerators": found.layout.accelerators,
            "system": system.value,
            "split": split,
            "trainers": found.layout.trainers,
            "tensor_parallel_size": found.layout.tensor_parallel,
            "over_synchronous": round(found.outcome.throughput / synchronous.throughput, 3),
            **told(found.outcome),
        }


def told(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as part of a row."""
    trained, whole = outcome.staleness(), outcome.staleness(inherent=True)
    return {
        "tokens_per_second": round(outcome.throughput),
        "round_seconds": round(outcome.round_seconds, 2),
        "generated_per_second": round(outcome.generation),
        "trainer_waits": round(outcome.waiting_share, 3),
        "replicas_busy": round(outcome.busy_share, 3),
        "staleness_mean": round(trained.mean, 3),
        "staleness_p99": trained.quantile(0.99),
        "staleness_max": trained.worst,
        "staleness_when_whole_mean": round(whole.mean, 3),
        "staleness_when_whole_max": whole.worst,
        "releases": outcome.releases,
        "moved": outcome.moved,
        "recomputed_share": round(outcome.recomputed_share, 4),
        "preemptions": outcome.preemptions,
    }
