"""The benchmark `rljob bench elasticity`: the operator's own number of rollout machines against every fixed number.

Mode OnPolicy, the same lengths for all. The autoscaler looks for the number with the least product of a round's seconds
and its machine-seconds, the trainer's among them, one machine at a time and from what the coordinator predicts
(`marginal_gain.py` explains the shares). The limit of each figure is what the best fixed number gets, known in
hindsight. A machine here is one engine; the rounds are plain and disaggregated, and rewards take no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_api.status import RoundReport
from rljob_bench.lib.experiment import PLAIN, scenario_of
from rljob_bench.lib.result import settings_of
from rljob_bench.lib.settings import settings_for
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.simulator.core.events import Event, Reported
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.peers.assumptions import SETTINGS, Setting
from rljob_runtime.simulator.run import simulate
from rljob_runtime.simulator.scenario import Elastic


@dataclass(frozen=True)
class Plan:
    """What is measured. A step takes four rounds and a minute; from either bound the other is within reach."""

    most: int = 8
    prompts: int = 64
    rounds: int = 40
    last: int = 8
    """Rounds at the end, by when the number has settled: of these, in all runs, are the figures."""
    settings: tuple[Setting, ...] = SETTINGS


QUICK = Plan(most=3, prompts=48, rounds=12, last=4, settings=SETTINGS[:1])


@dataclass(frozen=True)
class Round:
    """A round that was played, the rollout machines that it had, and the trainer in machines."""

    machines: int
    trainer: float
    report: RoundReport

    @property
    def seconds(self) -> float:
        """Of all of it."""
        return self.report.seconds or 0.0

    @property
    def machine_seconds(self) -> float:
        """The trainer's among them."""
        return (self.machines + self.trainer) * self.seconds


@dataclass(frozen=True)
class Cost:
    """Means of some rounds."""

    seconds: float
    machine_seconds: float

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Cost:
        """Of these."""
        return cls(
            sum(one.seconds for one in rounds) / len(rounds),
            sum(one.machine_seconds for one in rounds) / len(rounds),
        )

    @property
    def product(self) -> float:
        """What is to be least."""
        return self.seconds * self.machine_seconds


def elasticity(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
    """Measure all settings, or with `traces` those instead.

    Raises `TraceError`, and `RuntimeError` where a run does not end well.
    """
    plan = QUICK if quick else Plan()
    plan = replace(plan, settings=settings_for(plan.settings, quick=quick, traces=traces))
    figures: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for setting in plan.settings:
        fixed = {number: played(setting, plan, seed, number) for number in range(1, plan.most + 1)}
        bounds = Elastic(1, plan.most, setting.trainer_accelerators)
        chosen = {start: played(setting, plan, seed, start, bounds) for start in (bounds.smallest, bounds.largest)}
        figures += _figures(setting, plan, fixed, chosen)
        rows += [_row(setting, f"{number} machines", one) for number, its in fixed.items() for one in its]
        rows += [_row(setting, f"elastic from {start}", one) for start, its in chosen.items() for one in its]
    return {
        "bench": "elasticity",
        "seed": seed,
        "settings": {
            "quick": quick,
            "bounds": [1, plan.most],
            "prompts": plan.prompts,
            "rounds": plan.rounds,
            "last_rounds": plan.last,
            **settings_of(plan.settings),
        },
        "figures": figures,
        "rows": rows,
    }


def played(setting: Setting, plan: Plan, seed: int, machines: int, elastic: Elastic | None = None) -> list[Round]:
    """Simulate the rounds of a job with `machines` machines, or one that begins with them. Raises `RuntimeError`."""
    size = setting.tensor_parallel
    trainer = setting.trainer_accelerators / size
    layout = replace(
        setting,
        prompts=plan.prompts,
        accelerators=setting.trainer_accelerators + machines * size,
        accelerators_per_machine=size,
    )
    drawn = scenario_of(layout, PLAIN, plan.rounds, seed, colocated=False)
    found: dict[int, Round] = {}

    def watch(event: Event) -> None:
        if isinstance(event, Reported) and (report := event.status.last_round) is not None:
            chain = event.status.relay.chain if event.status.relay is not None else ()
            found.setdefault(report.round, Round(len(chain), trainer, report))

    outcome = simulate(replace(drawn, elastic=elastic), FaultPlan(), [watch])
    if outcome.violation is not None:
        raise RuntimeError(f"{setting.name} from {machines} machines: {outcome.violation}")
    return [found[number] for number in sorted(found)]


def _figures(
    setting: Setting, plan: Plan, fixed: Mapping[int, Sequence[Round]], chosen: Mapping[int, Sequence[Round]]
) -> list[dict[str, Any]]:
    costs = {number: Cost.of(its[-plan.last :]) for number, its in fixed.items()}
    best = min(costs, key=lambda number: costs[number].product)
    figures = []
    for start, its in chosen.items():
        last, title = its[-plan.last :], f"{setting.name}, from {start}"
        settled = Cost.of(last)
        anchor = f"{best} machines, the best fixed number in hindsight"
        figures += [
            figure(
                f"{title}: machines in the end",
                sum(one.machines for one in last) / len(last),
                goal=best,
                anchor=anchor,
                unit="machines",
                better="nearest",
            ),
            figure(
                f"{title}: seconds x machine-seconds, best fixed over elastic",
                costs[best].product / settled.product,
                goal=0.9,
                anchor=anchor,
                limit=1.0,
            ),
            figure(
                f"{title}: seconds, 1 machine over elastic",
                costs[1].seconds / settled.seconds,
                limit=costs[1].seconds / costs[best].seconds,
                anchor=anchor,
            ),
            figure(
                f"{title}: machine-seconds, {plan.most} machines over elastic",
                costs[plan.most].machine_seconds / settled.machine_seconds,
                limit=costs[plan.most].machine_seconds / costs[best].machine_seconds,
                anchor=anchor,
            ),
        ]
    return figures


def _row(setting: Setting, run: str, one: Round) -> dict[str, Any]:
    return {
        "setting": setting.name,
        "run": run,
        "round": one.report.round,
        "machines": one.machines,
        "seconds": one.report.seconds,
        "generation_seconds": one.report.generation_seconds,
        "predicted_seconds": {str(each.machines): each.seconds for each in one.report.machine_forecasts or ()},
    }
