"""The benchmark `rljob bench repack`: what repack brings where Laminar measured it (its §8.4).

32B, 64 accelerators train and 64 generate as 16 replicas of four. Admission does not hold generation back, neither here
nor there; what the trainer cannot take stays in the buffer. Replicas draw batch after batch, as Laminar's do: RLJob's
own, which draw while their weights are the newest, are fuller without repack.

The limit is every cache as full as it can be all the time. With a flat latency (a step takes as long whatever the batch
and its context, as Laminar §2.4 has it) repack is worth most; by the roofline a fuller replica is a slower one. The
paper's rule, which makes every merge that fits, is simulated too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_bench.async_systems.asynchronous import Job, Policy
from rljob_bench.async_systems.groups import Prompts
from rljob_bench.async_systems.hardware import Hardware
from rljob_bench.async_systems.ideal import token_seconds
from rljob_bench.async_systems.lengths import prompts_of, recorded, workload_of
from rljob_bench.async_systems.outcome import Outcome
from rljob_bench.async_systems.systems import System, Window, policy_of, printed_layout
from rljob_bench.simulated.laminar import assumed, told
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.asynchronous.repack import RepackRules
from rljob_runtime.scheduling.asynchronous.repack_gain import merges_that_fit
from rljob_runtime.simulator.peers.assumptions import DAPO_LENGTHS, LAMINAR_MODELS, MATH_LENGTHS, TABLE_1_LENGTHS

GOAL = 1.36
PAPER = "Laminar Fig. 15: 1.26x"
WINDOW = Window(warm_up=4, updates=6)
QUICK = Window(warm_up=1, updates=1)
MODEL, SCALE = LAMINAR_MODELS[1], 2
UNBOUNDED = 1e6
"""Rounds' worth of open groups: more than there ever are."""
PERIODS = (1.0, 5.0, 20.0, 60.0)
THRESHOLDS = (0.5, 0.8, 0.99)
BATCHES = (16, 32, 64, 128, 256)


def repack(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
    """Measure on lengths that come near the paper's Table 1 and on others, or, with `traces`, on recorded ones instead.

    Raises `TraceError`.
    """
    window = QUICK if quick else WINDOW
    hardware = printed_layout(System.OURS, MODEL, SCALE).hardware()
    if traces is not None:
        lengths = recorded(traces, seed)
    else:
        lengths = {one.name: workload_of(one, seed) for one in (TABLE_1_LENGTHS, DAPO_LENGTHS, MATH_LENGTHS)}
    figures: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for place, (name, workload) in enumerate(lengths.items()):
        prompts = prompts_of(workload)
        compared = Compared.of(name, hardware, prompts, window)
        figures += compared.figures(GOAL if not place and traces is None else None)
        rows += compared.rows()
        if not place:
            without_slope = replace(hardware, latency=flat(hardware.latency))
            even = Compared.of(f"{name}.flat-latency", without_slope, prompts, window)
            figures += even.figures(None)
            rows += even.rows()
            if not quick:
                rows += ablations(compared)
    return {
        "bench": "repack",
        "seed": seed,
        "settings": {"quick": quick, "replicas": hardware.replicas, "lengths": list(lengths), **assumed()},
        "figures": figures,
        "rows": rows,
    }


def flat(latency: LatencyModel) -> LatencyModel:
    """Return a latency model in which each step takes as long as that of one sequence without context."""
    return replace(latency, knots=((1.0, latency.base(1)),), context_token_seconds=0.0)


@dataclass(frozen=True)
class Compared:
    """Without repack, with it, and with the paper's rule."""

    name: str
    hardware: Hardware
    prompts: Prompts
    window: Window
    without: Outcome
    repacked: Outcome
    fitting: Outcome

    @classmethod
    def of(cls, name: str, hardware: Hardware, prompts: Prompts, window: Window) -> Compared:
        """Play them."""
        usual = replace(policy_of(), capacity=UNBOUNDED, batchwise=True)
        without, repacked, fitting = (
            Job(hardware, prompts, policy).play(window.warm_up, window.updates)
            for policy in (replace(usual, repack=None), usual, replace(usual, plan=merges_that_fit))
        )
        return cls(name, hardware, prompts, window, without, repacked, fitting)

    def gain(self, outcome: Outcome) -> float:
        """Tokens generated, over those without repack, in the same time."""
        return outcome.generation / self.without.generation

    def figures(self, goal: float | None) -> Iterator[dict[str, Any]]:
        """Yield the figures of generation, the caches, and the latency of responses."""
        groups = [group for number in range(self.window.updates) for group in self.prompts.batch(number)]
        most = self.hardware.replicas / token_seconds(self.hardware, groups)
        limit = most / self.without.generation
        yield figure(f"{self.name}.generation", self.gain(self.repacked), goal, PAPER, limit)
        yield figure(f"{self.name}.generation_by_the_papers_rule", self.gain(self.fitting), None, PAPER, limit)
        yield figure(
            f"{self.name}.kv_use_without", self.without.kv_use, None, "Laminar Table 1: 0.716", 1.0, unit="share"
        )
        yield figure(f"{self.name}.kv_use", self.repacked.kv_use, None, "Laminar Table 1: 0.822", 1.0, unit="share")
        yield figure(
            f"{self.name}.mean_latency",
            self.repacked.mean_latency / self.without.mean_latency,
            None,
            "Laminar Table 1: 290 s over 296 s",
            better="lower",
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """All of them."""
        yield self.row("without", self.without)
        yield self.row("repack", self.repacked)
        yield self.row("every merge that fits", self.fitting)

    def row(self, label: str, outcome: Outcome) -> dict[str, Any]:
        """One of them."""
        return {
            "lengths": self.name,
            "policy": label,
            "generation_over_without": round(self.gain(outcome), 4),
            "kv_use": round(outcome.kv_use, 4),
            "mean_latency_seconds": round(outcome.mean_latency, 1),
            "longest_latency_seconds": round(max(outcome.latencies), 1),
            **told(outcome),
        }


def ablations(compared: Compared) -> Iterator[dict[str, Any]]:
    """Yield the same with one of the policy's numbers changed."""
    usual = replace(policy_of(), capacity=UNBOUNDED, batchwise=True)
    assert usual.repack is not None
    changed: dict[str, Policy] = {}
    for period in PERIODS:
        changed[f"every {period:g} s"] = replace(usual, interval=period)
    for threshold in THRESHOLDS:
        changed[f"threshold {threshold:g}"] = replace(usual, repack=RepackRules(threshold, usual.repack.max_batch))
    for batch in BATCHES:
        changed[f"at most {batch}"] = replace(usual, repack=RepackRules(usual.repack.kv_cache_threshold, batch))
    window = compared.window
    for label, policy in changed.items():
        if policy != usual:
            outcome = Job(compared.hardware, compared.prompts, policy).play(window.warm_up, window.updates)
            yield compared.row(label, outcome)
