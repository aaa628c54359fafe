"""The benchmark `rljob bench planner`: fixed tensor parallel sizes against the parallelism planner.

RollPacker §4.2, on responses that grow and shrink. The coordinator runs each job under virtual time, with the
operator's own policy in the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from rljob_api.status import RoundKind, RoundReport
from rljob_bench.lib.cluster import MAX_PROMPT_TOKENS, BenchmarkCluster
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.perf_model.hardware import H800, Accelerator
from rljob_runtime.perf_model.model_shape import QWEN2_5_14B
from rljob_runtime.perf_model.profile import Profile, ProfileError
from rljob_runtime.simulator.core.events import Event, Reported
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.peers.engines.profiled_engines import ProfiledEngines
from rljob_runtime.simulator.run import simulate
from rljob_runtime.workloads.generator import Generator
from rljob_runtime.workloads.parameters import WorkloadParameters
from rljob_runtime.workloads.phases import Phases
from rljob_runtime.workloads.quantile_distribution import Distribution

SIZES = (1, 2, 4)
ACCELERATORS = 4
TAIL_FACTOR = 1.25
PLANNER = "planner"
PAPER_SPEEDUP, PAPER_PREEMPTIONS = 1.9, 0.138


@dataclass(frozen=True)
class Setting:
    """One machine and its workload.

    `phases`: the median of the responses from an epoch on, by epoch (as many prompts as a round trains on). `cap`: of
    the longest, in tokens.
    """

    rounds: int = 26
    prompts: int = 64
    responses: int = 8
    cap: int = 14_000
    phases: tuple[tuple[int, int], ...] = ((0, 500), (8, 5000), (17, 500))
    sigma: float = 0.7
    correlation: float = 0.5
    accelerator: Accelerator = H800
    engines: ProfiledEngines | None = None
    """None: the roofline's."""

    def workload(self, seed: int) -> Phases:
        """Lognormal lengths, as alike within a prompt as RollPacker's seem to be."""
        return Phases(tuple((epoch, Generator(self._parameters(median), seed)) for epoch, median in self.phases))

    def _parameters(self, median: int) -> WorkloadParameters:
        return WorkloadParameters(
            task=f"median-{median}",
            source="assumed",
            input_tokens=Distribution.lognormal(median=150, sigma=0.3),
            output_tokens=Distribution.lognormal(median=median, sigma=self.sigma),
            correlation=self.correlation,
        )


FULL = Setting()
QUICK = Setting(
    rounds=12,
    prompts=8,
    responses=4,
    cap=3000,
    phases=((0, 200), (4, 1500), (8, 200)),
    accelerator=replace(H800, name="H800 with 38 GB", memory_bytes=38e9),
)
"""Small rounds do not fill a large memory."""

Runs = Mapping[str, Sequence[RoundReport]]


def planner(*, quick: bool, seed: int, profile: Profile | None = None) -> dict[str, Any]:
    """Measure seconds of generation and preemptions, all sizes and the planner on the same lengths.

    `profile`: of the engines. Raises `ProfileError`.
    """
    setting = QUICK if quick else FULL
    return measure(setting if profile is None else measured(setting, profile), seed)


def measured(setting: Setting, profile: Profile) -> Setting:
    """Return the setting on the engines of a profile.

    Raises `ProfileError` where one of the sizes is not among them, or cannot hold the longest response.
    """
    engines, needed = ProfiledEngines.of(profile, QWEN2_5_14B), setting.cap + MAX_PROMPT_TOKENS
    for size in SIZES:
        if (kv_tokens := engines.at(size).kv_tokens) < needed:
            raise ProfileError(f"profile.kv_tokens[{size}]: {kv_tokens}; {needed} or more would be right")
    return replace(setting, engines=engines)


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    """Return the result of `rljob bench`. Raises `RuntimeError` where a run does not end well."""
    runs = {f"TP {size}": _rounds(setting, seed, (size,)) for size in SIZES}
    runs[PLANNER] = _rounds(setting, seed, SIZES)
    return {
        "bench": "planner",
        "seed": seed,
        "settings": {
            "model": QWEN2_5_14B.name,
            "accelerator": setting.accelerator.name,
            "accelerators": ACCELERATORS,
            "engines": setting.engines.source if setting.engines is not None else "roofline",
            "rounds": setting.rounds,
            "prompts": setting.prompts,
            "responses": setting.responses,
            "cap": setting.cap,
            "tail_factor": TAIL_FACTOR,
            "median_tokens_from_epoch": {str(epoch): median for epoch, median in setting.phases},
            "lengths": f"lognormal, sigma {setting.sigma}, correlation within prompts {setting.correlation}: assumed",
        },
        "figures": _figures(runs),
        "rows": [_row(name, report) for name, reports in runs.items() for report in reports],
    }


def _rounds(setting: Setting, seed: int, sizes: tuple[int, ...]) -> list[RoundReport]:
    """Return the rounds of one run. It starts at the smallest of the sizes."""
    cluster = BenchmarkCluster(
        QWEN2_5_14B,
        setting.accelerator,
        machines=1,
        trainer_accelerators=ACCELERATORS,
        accelerators_per_machine=ACCELERATORS,
        tensor_parallel=sizes[0],
        wider=sizes[1:],
        engines=setting.engines,
    )
    drawn = cluster.scenario(PLANNER, setting.rounds, setting.prompts, setting.responses, setting.cap, seed)
    scenario = replace(drawn, tail_factor=TAIL_FACTOR, prompts_an_epoch=setting.prompts)
    reports: dict[int, RoundReport] = {}

    def observe(event: Event) -> None:
        if isinstance(event, Reported) and event.status.last_round is not None:
            reports[event.status.last_round.round] = event.status.last_round

    outcome = simulate(scenario, FaultPlan(), [observe], setting.workload(seed))
    if not outcome.passed:
        raise RuntimeError(f"the run with tensor parallel sizes {sizes} broke off: {outcome.violation}")
    return [reports[number] for number in sorted(reports)]


def _figures(runs: Runs) -> list[dict[str, Any]]:
    planned = _seconds(runs[PLANNER])
    fixed = {name: reports for name, reports in runs.items() if name != PLANNER}
    # The kinds of rounds follow from counts, so the n-th rounds of all runs are of one kind, on the same lengths.
    best = sum(
        min(report.generation_seconds or 0.0 for report in rounds) for rounds in zip(*fixed.values(), strict=True)
    )
    figures = [
        figure(
            f"generation time, {name} over planner",
            _seconds(reports) / planned,
            goal=PAPER_SPEEDUP if name == _worst(fixed) else None,
            anchor="RollPacker: up to 1.9 x against a fixed size",
            limit=_seconds(reports) / best,
        )
        for name, reports in fixed.items()
    ]
    saved = 1 - _preemptions(runs[PLANNER]) / max(1, _preemptions(fixed[f"TP {SIZES[0]}"]))
    figures += [
        figure(
            f"preemptions saved against TP {SIZES[0]}, where the planner starts",
            saved,
            goal=PAPER_PREEMPTIONS,
            anchor="RollPacker: 13.8 % on average in short rounds",
            limit=1.0,
            unit="share",
        ),
        figure("changes of the size", _changes(runs[PLANNER]), anchor="", unit="count", better="lower"),
    ]
    return figures


def _seconds(reports: Sequence[RoundReport]) -> float:
    return sum(report.generation_seconds or 0.0 for report in reports)


def _preemptions(reports: Sequence[RoundReport]) -> int:
    return sum(report.preemptions or 0 for report in reports)


def _changes(reports: Sequence[RoundReport]) -> int:
    """Count them apart in short rounds and in all others: these share a size."""
    of_kind = [
        [one.tensor_parallel_size for one in reports if (one.kind is RoundKind.SHORT) is short]
        for short in (True, False)
    ]
    return sum(before != after for sizes in of_kind for before, after in pairwise(sizes))


def _worst(runs: Runs) -> str:
    return max(runs, key=lambda name: _seconds(runs[name]))


def _row(run: str, report: RoundReport) -> dict[str, Any]:
    return {
        "run": run,
        "round": report.round,
        "kind": report.kind.value,
        "tensor_parallel_size": report.tensor_parallel_size,
        "mean_response_tokens": report.mean_response_tokens,
        "generation_seconds": report.generation_seconds,
        "predicted_seconds": {str(one.tensor_parallel_size): one.seconds for one in report.layout_forecasts or ()},
        "layout_seconds": report.layout_seconds,
        "preemptions": report.preemptions,
    }
