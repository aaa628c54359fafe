"""`rljob bench stream`: training beside generation against training after it (RollPacker §4.4, Table 3), nothing else
changed: the same machines, prompts, weight versions, and so the same lengths of every response.

The limit is perfect overlap: an update adds to its round only its fixed seconds, or what its tokens take longer than
all of the generation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_runtime.simulation.assumptions import SETTINGS, Setting
from rljob_runtime.simulation.benchmarks.result import figure, settings_of
from rljob_runtime.simulation.benchmarks.traces import trace_settings
from rljob_runtime.simulation.benchmarks.trial import PLAIN, TAIL, Technique, Trial, cluster_of, run, speedup

PAPER = "RollPacker Table 3: 1.08x"
GOAL = 1.08


@dataclass(frozen=True)
class Plan:
    """Plain rounds are alike, so few will do; tail batching needs a long one among them."""

    settings: tuple[Setting, ...] = SETTINGS
    plain_rounds: int = 3
    tail_rounds: int = 5


QUICK = Plan(settings=(replace(SETTINGS[0], prompts=16, responses=4),), plain_rounds=2)


def stream(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
    """Measure plain rounds and rounds that race. Raises `TraceError`."""
    plan = QUICK if quick else Plan()
    settings = (*plan.settings, *trace_settings(traces)) if traces else plan.settings
    figures, rows = [], []
    for setting in settings:
        for technique, rounds in ((PLAIN, plan.plain_rounds), (TAIL, plan.tail_rounds)):
            after, beside = pair(setting, technique, rounds, seed)
            name = f"{setting.name}.{technique.name.replace(' ', '_')}"
            goal, anchor = (GOAL, PAPER) if technique is PLAIN else (None, None)
            limit = after.seconds() / overlapped(setting, after)
            figures.append(figure(name, speedup(after, beside), goal, anchor, limit))
            rows += [{"setting": setting.name, **trial.row()} for trial in (after, beside)]
    return {
        "bench": "stream",
        "seed": seed,
        "settings": {"quick": quick, **settings_of(settings)},
        "figures": figures,
        "rows": rows,
    }


def pair(setting: Setting, technique: Technique, rounds: int, seed: int) -> tuple[Trial, Trial]:
    """The job that trains after generation, and the one that trains beside it."""
    beside = replace(technique, name=f"{technique.name} + stream", stream=True)
    after, streamed = (run(setting, each, rounds, seed, colocated=False) for each in (technique, beside))
    return after, streamed


def overlapped(setting: Setting, after: Trial) -> float:
    """Seconds of the job under perfect overlap."""
    fixed = cluster_of(setting, colocated=False).costs().step
    total = 0.0
    for report in after.reports:
        seconds, generation, training = report.seconds, report.generation_seconds, report.training_seconds
        assert seconds is not None
        assert generation is not None
        assert training is not None
        total += seconds - min(generation, training - fixed)
    return total
