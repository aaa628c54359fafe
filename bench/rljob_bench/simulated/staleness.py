"""`rljob bench staleness`: how old the weights are that made what is trained on, and what a bound on it costs.

Two counts. *When whole*: the updates between a group's weights and the end of its last response, which is Laminar's
(§6). *When trained*: until the update that takes it, which is RLJob's, and what its bound is about; the time in the
buffer is in it.

A bound is not had for nothing. With a bound of k a response of L seconds has to fit into k rounds, so they take L/k at
least, where a synchronous round takes L and its update. So if every round has one that long, speed-up over synchronous
is less than k + 1, whatever the schedule: docs/internals/simulator/async-systems.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_bench.async_systems.asynchronous import Job, Policy
from rljob_bench.async_systems.groups import Prompts
from rljob_bench.async_systems.hardware import Layout
from rljob_bench.async_systems.lengths import prompts_of, recorded, workload_of
from rljob_bench.async_systems.outcome import Outcome
from rljob_bench.async_systems.systems import System, Window, play, policy_of, printed_layout
from rljob_bench.simulated.laminar import GOAL_STALENESS, assumed, told
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.simulator.peers.assumptions import DAPO_LENGTHS, LAMINAR_MODELS, TABLE_1_LENGTHS

CAPACITIES = (1.0, 1.5, 3.0, 4.0)
BOUNDS = (1, 2, 4, 6)
WINDOW = Window(warm_up=8, updates=12)
QUICK = Window(warm_up=2, updates=2)
SETTINGS = ((LAMINAR_MODELS[0], 2, None), (LAMINAR_MODELS[0], 4, 128))
"""Model, scale, and trainers where they are not Laminar's: 7B on 64 accelerators, where it shows a distribution (its
Fig. 10), and on 256 in halves, near the best split."""


def staleness(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
    """Measure distributions, and speed-up over synchronous by capacity and by bound.

    On generated lengths or, with `traces`, on recorded ones instead. Raises `TraceError`.
    """
    window = QUICK if quick else WINDOW
    if traces is not None:
        lengths = recorded(traces, seed)
    else:
        generated = (DAPO_LENGTHS,) if quick else (DAPO_LENGTHS, TABLE_1_LENGTHS)
        lengths = {one.name: workload_of(one, seed) for one in generated}
    figures: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for name, workload in lengths.items():
        prompts = prompts_of(workload)
        for model, scale, trainers in SETTINGS[:1] if quick else SETTINGS:
            synchronous = play(
                System.SYNCHRONOUS, printed_layout(System.SYNCHRONOUS, model, scale).hardware(), prompts, window
            )
            layout = printed_layout(System.OURS, model, scale)
            layout = layout if trainers is None else replace(layout, trainers=trainers)
            curve = Curve(
                f"{name}.{model.name}-{layout.accelerators}-{layout.trainers}-train",
                layout,
                prompts,
                window,
                synchronous,
            )
            usual = curve.play(policy_of())
            figures += curve.figures(usual)
            rows += [curve.row("as usual", usual)]
            rows += [] if quick else curve.rows()
    return {
        "bench": "staleness",
        "seed": seed,
        "settings": {"quick": quick, "lengths": list(lengths), **assumed()},
        "figures": figures,
        "rows": rows,
    }


@dataclass(frozen=True)
class Curve:
    """Jobs on one layout."""

    name: str
    layout: Layout
    prompts: Prompts
    window: Window
    synchronous: Outcome

    def play(self, policy: Policy) -> Outcome:
        """One of them."""
        return Job(self.layout.hardware(), self.prompts, policy).play(self.window.warm_up, self.window.updates)

    def figures(self, usual: Outcome) -> Iterator[dict[str, Any]]:
        """Of the distribution."""
        for label, inherent in (("when_whole", True), ("when_trained", False)):
            seen = usual.staleness(inherent=inherent)
            goal, anchor = (GOAL_STALENESS, "Laminar §8.1: 4, typically under 3") if inherent else (None, None)
            for figure_name, value, its_goal in (
                ("mean", seen.mean, None),
                ("p99", seen.quantile(0.99), None),
                ("max", seen.worst, goal),
            ):
                yield figure(
                    f"{self.name}.{label}_{figure_name}", value, its_goal, anchor, unit="updates", better="lower"
                )
            yield figure(f"{self.name}.{label}_under_3", seen.share_to(2), unit="share")
        yield figure(f"{self.name}.over_synchronous", self._speedup(usual))

    def rows(self) -> Iterator[dict[str, Any]]:
        """By capacity, and by bound."""
        for capacity in CAPACITIES:
            yield self.row(f"{capacity:g} rounds may be open", self.play(replace(policy_of(), capacity=capacity)))
        for bound in BOUNDS:
            yield self.row(f"bound {bound}", self.play(replace(policy_of(), max_staleness=bound)))

    def row(self, label: str, outcome: Outcome) -> dict[str, Any]:
        """With both distributions."""
        return {
            "job": self.name,
            "policy": label,
            "over_synchronous": round(self._speedup(outcome), 3),
            **told(outcome),
            "when_trained": _shares(outcome, inherent=False),
            "when_whole": _shares(outcome, inherent=True),
        }

    def _speedup(self, outcome: Outcome) -> float:
        return outcome.throughput / self.synchronous.throughput


def _shares(outcome: Outcome, *, inherent: bool) -> dict[int, float]:
    counts = outcome.staleness(inherent=inherent).counts
    return {value: round(counts[value] / counts.total(), 4) for value in sorted(counts)}
