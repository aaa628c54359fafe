"""The benchmark `rljob bench stream`: training during generation, and on loaned machines, against training after it.

RollPacker §4.4, Table 3. Nothing else changes: the same machines, prompts and weight versions, and so the same lengths
of every response.

The limits are perfect overlap. With the trainer alone an update adds to its round only its fixed seconds, or what its
tokens take longer than all of the generation; with loaned machines, which make the trainer quicker, only its fixed
seconds. Each job is also simulated with half of its trainer machines generating instead: there loans have something to
gain, and there they are ablated. A fixed trigger starts loans once a given share of the responses is done, whatever is
predicted (Table 3's other rows). With the last of these triggers, and groups fetched together, trainer and loaned
machines begin when generation has ended (Table 4). The product's own decision is also measured in other windows: shares
of the responses done between which machines may be loaned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_bench.lib.experiment import PLAIN, TAIL, Experiment, Technique, cluster_of, run, speedup
from rljob_bench.lib.result import settings_of
from rljob_bench.lib.settings import settings_for, small
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.perf_model.profile import Profile
from rljob_runtime.scheduling.lending.policy import LoanRules
from rljob_runtime.simulator.peers.assumptions import SETTINGS, Setting

PAPER = "RollPacker Table 3: 1.08x"
GOAL = 1.08
TRIGGERS = (0.2, 0.3, 0.4)
"""RollPacker Table 3: shares of the responses done."""
WINDOWS = {"papers_window": (0.2, 0.5), "until_the_end": (0.2, 1.0), "late_window": (0.7, 0.98)}
"""Where a loan that is predicted to pay is looked for: the paper's, the paper's and all after it, and the last of a
round."""


@dataclass(frozen=True)
class Plan:
    """Plain rounds are alike, so few will do; tail batching needs a long one among them."""

    settings: tuple[Setting, ...] = SETTINGS
    plain_rounds: int = 3
    tail_rounds: int = 5


QUICK = Plan(settings=(small(SETTINGS[0]),), plain_rounds=2)


def stream(*, quick: bool, seed: int, traces: Path | None = None, profile: Profile | None = None) -> dict[str, Any]:
    """Measure plain and oversampled rounds, on generated lengths or, with `traces`, on those instead.

    `profile`: of the engines. Raises `TraceError` and `ProfileError`.
    """
    plan = QUICK if quick else Plan()
    plan = replace(plan, settings=settings_for(plan.settings, quick=quick, traces=traces, profile=profile))
    figures: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for setting in (each for asked in plan.settings for each in (asked, scarce(asked))):
        for technique, rounds in ((PLAIN, plan.plain_rounds), (TAIL, plan.tail_rounds)):
            compared = Compared.of(setting, technique, rounds, seed)
            ablations = {} if setting in plan.settings else ablated(setting, compared.loaned.technique, rounds, seed)
            figures += compared.figures(setting, ablations)
            experiments = (*compared.experiments, *ablations.values())
            rows += [{"setting": setting.name, **experiment.row()} for experiment in experiments]
    return {
        "bench": "stream",
        "seed": seed,
        "settings": {"quick": quick, **settings_of(plan.settings)},
        "figures": figures,
        "rows": rows,
    }


def scarce(setting: Setting) -> Setting:
    """With half of the trainer machines, but one at least."""
    machine = setting.accelerators_per_machine
    trainers = max(1, setting.trainer_accelerators // machine // 2) * machine
    return replace(setting, name=f"{setting.name}-few-trainers", trainer_accelerators=trainers)


def at_end(adapt: Callable[[Settings], Settings]) -> Callable[[Settings], Settings]:
    """Return the same, but nothing is trained on before all of it is generated."""
    return lambda settings: replace(adapt(settings), fetch_as_they_end=False)


def trigger(share: float) -> Callable[[Settings], Settings]:
    """Loan half of the machines once this share of the responses is done."""
    rules = LoanRules(min_completed=share, max_completed=1.0, requires_gain=False)
    return lambda settings: replace(settings, lending=rules)


def window(least: float, most: float) -> Callable[[Settings], Settings]:
    """Allow loans while between `least` and `most` of the responses are done, as shares."""
    return lambda settings: replace(settings, lending=LoanRules(least, most))


def other_windows() -> dict[str, tuple[float, float]]:
    """Those that are not the default."""
    usual = LoanRules()
    return {label: bounds for label, bounds in WINDOWS.items() if bounds != (usual.min_completed, usual.max_completed)}


def ablated(setting: Setting, loaned: Technique, rounds: int, seed: int) -> dict[str, Experiment]:
    """Return the job with machines on loan, one thing about the loans changed."""
    techniques = {
        f"from_{share * 100:.0f}": replace(loaned, name=f"{loaned.name}, from {share:.0%} done", adapt=trigger(share))
        for share in TRIGGERS
    }
    last = techniques[f"from_{TRIGGERS[-1] * 100:.0f}"]
    assert last.adapt is not None
    techniques["at_end"] = replace(last, name=f"{last.name}, fetched at the end", adapt=at_end(last.adapt))
    for label, (least, most) in other_windows().items():
        name = f"{loaned.name}, looked for from {least:.0%} to {most:.0%}"
        techniques[label] = replace(loaned, name=name, adapt=window(least, most))
    return {label: run(setting, each, rounds, seed, colocated=False) for label, each in techniques.items()}


@dataclass(frozen=True)
class Compared:
    """The job that trains after generation, the one that trains during it, and the one that loans machines too."""

    after: Experiment
    beside: Experiment
    loaned: Experiment

    @classmethod
    def of(cls, setting: Setting, technique: Technique, rounds: int, seed: int) -> Compared:
        """Play them."""
        beside = replace(technique, name=f"{technique.name} + stream", stream=True)
        loaned = replace(beside, name=f"{beside.name} + loaned machines", loans=True)
        return cls(*(run(setting, each, rounds, seed, colocated=False) for each in (technique, beside, loaned)))

    @property
    def experiments(self) -> tuple[Experiment, Experiment, Experiment]:
        """All of them."""
        return self.after, self.beside, self.loaned

    def figures(self, setting: Setting, ablations: Mapping[str, Experiment]) -> Iterator[dict[str, Any]]:
        """How many times as fast as training after generation."""
        name = f"{setting.name}.{self.after.technique.name.replace(' ', '_')}"
        goal, anchor = (GOAL, PAPER) if self.after.technique is PLAIN else (None, None)
        alone, shared = (self.after.seconds() / overlapped(setting, self.after, loaned=each) for each in (False, True))
        yield figure(name, speedup(self.after, self.beside), goal, anchor, alone)
        yield figure(f"{name}.loaned", speedup(self.after, self.loaned), goal, anchor, shared)
        for label, experiment in ablations.items():
            yield figure(f"{name}.loaned.{label}", speedup(self.after, experiment), limit=shared)


def overlapped(setting: Setting, after: Experiment, *, loaned: bool) -> float:
    """Seconds of the job under perfect overlap."""
    fixed = cluster_of(setting, colocated=False).costs().step
    total = 0.0
    for report in after.reports:
        seconds, generation, training = report.seconds, report.generation_seconds, report.training_seconds
        assert seconds is not None
        assert generation is not None
        assert training is not None
        total += seconds - (training - fixed if loaned else min(generation, training - fixed))
    return total
