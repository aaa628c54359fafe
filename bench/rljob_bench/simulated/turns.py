"""`rljob bench turns`: episodes of several turns that wait for tools, on 16 to 1,024 accelerators.

The workload is PolyTrace's search task with its turns, its tools' answers and their seconds: a step of 256 prompts x 8.
A synchronous job waits for its longest episode, tools included, and most of its accelerators idle meanwhile.

Throughput is in tokens trained on, which are those of complete contexts. What the systems are, and what is left out:
docs/internals/simulator/async-systems.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rljob_bench.async_systems import ideal
from rljob_bench.async_systems.groups import Prompts
from rljob_bench.async_systems.lengths import prompts_of, recorded
from rljob_bench.async_systems.systems import Found, System, Window, best, play, printed_layout
from rljob_bench.simulated.laminar import told
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.simulator.peers.assumptions import LAMINAR_JOB, LAMINAR_MODELS, SEARCH_JOB, STANDARD, LaminarModel
from rljob_runtime.workloads import Prompt, Response, Turn, Workload, open_workload

GENERATOR = "search-r1-7b"
GOAL = 2.72
WINDOW = Window(warm_up=8, updates=8)
SEARCH = Window(warm_up=3, updates=3)
QUICK = Window(warm_up=2, updates=2)


@dataclass(frozen=True)
class OneTurn:
    """A workload whose responses have the tokens of all their turns in one piece, and no tools."""

    workload: Workload

    @property
    def task(self) -> str:
        """See `Workload.task`."""
        return self.workload.task

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt:
        """See `Workload.prompt`."""
        drawn = self.workload.prompt(step, index, responses, attempt)
        return replace(drawn, responses=tuple(Response((Turn(one.output_tokens),)) for one in drawn.responses))


def turns(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
    """All systems on generated episodes or, with `traces`, on recorded ones. Raises `TraceError`."""
    workloads: Mapping[str, Workload] = (
        {GENERATOR: open_workload(GENERATOR, seed)} if traces is None else recorded(traces, seed)
    )
    figures: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for name, workload in workloads.items():
        figures += _lengths(name, workload)
        for model in LAMINAR_MODELS[:1] if quick else LAMINAR_MODELS:
            measured = Measured(name, model, workload, QUICK if quick else WINDOW)
            rows += measured.rows()
            figures += measured.figures(search=None if quick else SEARCH)
    return {
        "bench": "turns",
        "seed": seed,
        "settings": {
            "quick": quick,
            "workloads": list(workloads),
            "assumptions": {name: asdict(assumption) for name, assumption in STANDARD.table()},
            "job": asdict(SEARCH_JOB),
            "splits": [asdict(model) for model in LAMINAR_MODELS],
        },
        "figures": figures,
        "rows": rows,
    }


class Measured:
    """A model on all its scales, on the splits of Laminar's Table 2."""

    def __init__(self, name: str, model: LaminarModel, workload: Workload, window: Window) -> None:
        self._name, self._model, self._workload, self._window = name, model, workload, window
        self._prompts = prompts_of(workload, SEARCH_JOB)
        self._found = {
            (system, scale): self._play(system, scale, self._prompts)
            for scale in range(len(model.accelerators))
            for system in System
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each job."""
        for (system, scale), found in self._found.items():
            yield {
                "workload": self._name,
                "model": self._model.name,
                "accelerators": found.layout.accelerators,
                "system": system.value,
                "trainers": found.layout.trainers,
                "over_synchronous": round(self._ratio(system, scale), 3),
                **told(found.outcome),
            }

    def figures(self, search: Window | None) -> Iterator[dict[str, Any]]:
        """At the largest scale, and the smallest. `search`: of the best splits; None to look for none."""
        last = len(self._model.accelerators) - 1
        name = f"{self._name}.{self._model.name}-{self._model.accelerators[last]}"
        synchronous, ours = self._found[System.SYNCHRONOUS, last], self._found[System.OURS, last]
        limit = ideal.throughput(ours.layout, self._prompts, self._window.updates)
        for system in System:
            if system not in (System.OURS, System.NO_REPACK):
                other = self._found[system, last].outcome.throughput
                goal = GOAL if system is System.SYNCHRONOUS else None
                label = f"{name}.ours_over_{system.word}"
                yield figure(label, ours.outcome.throughput / other, goal, None, limit / other)
        if search is not None:
            found = {
                system: best(system, self._model, last, self._prompts, self._window, search).outcome.throughput
                for system in (System.SYNCHRONOUS, System.OURS)
            }
            ratio, base = found[System.OURS] / found[System.SYNCHRONOUS], found[System.SYNCHRONOUS]
            yield figure(f"{name}.best_split.ours_over_synchronous", ratio, GOAL, None, limit / base)
        yield self._other(f"{name}.ours_over_synchronous.as_one_turn", prompts_of(OneTurn(self._workload), SEARCH_JOB))
        yield self._other(f"{name}.ours_over_synchronous.of_laminars_job", prompts_of(self._workload, LAMINAR_JOB))
        yield figure(
            f"{name}.synchronous_replicas_busy", synchronous.outcome.busy_share, unit="share", better="nearest"
        )
        first = f"{self._name}.{self._model.name}-{self._model.accelerators[0]}"
        yield figure(f"{first}.ours_over_synchronous", self._ratio(System.OURS, 0))

    def _play(self, system: System, scale: int, prompts: Prompts) -> Found:
        layout = printed_layout(system, self._model, scale)
        return Found(layout, play(system, layout.hardware(), prompts, self._window, SEARCH_JOB))

    def _ratio(self, system: System, scale: int) -> float:
        synchronous = self._found[System.SYNCHRONOUS, scale].outcome
        return self._found[system, scale].outcome.throughput / synchronous.throughput

    def _other(self, name: str, prompts: Prompts) -> dict[str, Any]:
        """Return the same ratio at the largest scale for other prompts."""
        last = len(self._model.accelerators) - 1
        ours, synchronous = (self._play(system, last, prompts) for system in (System.OURS, System.SYNCHRONOUS))
        base = synchronous.outcome.throughput
        limit = ideal.throughput(ours.layout, prompts, self._window.updates) / base
        return figure(name, ours.outcome.throughput / base, limit=limit)


def _lengths(name: str, workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield what a step's episodes are, on average."""
    drawn = [workload.prompt(0, index, SEARCH_JOB.responses) for index in range(SEARCH_JOB.prompts)]
    every = [(prompt, one) for prompt in drawn for one in prompt.responses]
    contexts = [prompt.input_tokens + one.output_tokens + one.tool_tokens for prompt, one in every]
    figures = (
        ("context_tokens", fmean(contexts), "tokens"),
        ("generated_tokens", fmean(one.output_tokens for _, one in every), "tokens"),
        ("turns", fmean(len(one.turns) for _, one in every), "turns"),
        ("tool_seconds", fmean(one.tool_seconds for _, one in every), "s"),
        ("tool_seconds_max", max(one.tool_seconds for _, one in every), "s"),
    )
    for label, value, unit in figures:
        yield figure(f"{name}.{label}", value, unit=unit, better="nearest")
