"""The benchmark `rljob bench pat`: tensor parallelism that changes inside a stage, in the engine model.

Each setting is one stage. The policy knows the lengths of one earlier round, drawn from the same distribution.
A job begins in the size that `rljob profile` names for responses at their limit. The parallelism planner then moves it
by what four earlier rounds predict, with switches for the policy (`pat_starts`). Baselines: the best static size in
hindsight, the profile's size, and the size that the planner arrives at without switches. Limit: the best sequence of at
most three switches in hindsight. PAT's printed algorithm and one rule for all sizes start at the best static size.

Machines of a fleet decide alone, so that a fleet's stage is as long as that of its last machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from rljob_bench.simulated.pat_accounts import Choice, choices, memory_figures, state_figures
from rljob_bench.simulated.pat_printed import PRINTED, printed_figures
from rljob_bench.simulated.pat_stages import (
    A40_8B,
    ACCELERATORS,
    H100_8B,
    H100_14B,
    QUICK,
    Engines,
    Stage,
    recorded,
    stages,
)
from rljob_bench.simulated.switches.comparison import BIAS_GOAL, ERROR_GOAL, compare, comparison_figures, row, summary
from rljob_bench.simulated.switches.sensitivity import sensitivity, sensitivity_figures
from rljob_bench.simulated.switches.stage_play import Play
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.scheduling.adaptive_tp.stage import Asked


def pat(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
    """Measure on lengths like PAT's, or, with `traces`, on recorded ones instead. Raises `TraceError`."""
    chosen = recorded(traces, quick) if traces is not None else QUICK if quick else stages()
    compared = [compare(Play(stage, seed)) for stage in chosen]
    figures = [one for each in compared for one in comparison_figures(each)]
    figures += summary(compared)
    rows = [row(each) for each in compared]
    figures += accounts(seed, quick)
    if traces is None:
        paper_figures, printed_rows = _printed(seed, quick)
        figures += paper_figures
        wrong = list(sensitivity(seed, quick))
        figures += [*sensitivity_figures(wrong), *_rounds(seed, quick)]
        rows += [*printed_rows, *wrong]
    return {
        "bench": "pat",
        "seed": seed,
        "settings": {
            "quick": quick,
            "engines": "roofline",
            "accelerators_per_machine": ACCELERATORS,
            "known_lengths": "one earlier round",
            "switch_seconds": {one.accelerator.name: one.fixed for one in (H100_8B, A40_8B)},
            "kv_bytes_per_second": {one.accelerator.name: one.kv_rates() for one in (H100_8B, A40_8B)},
            "lengths": "recorded" if traces is not None else "lognormal by PAT Fig. 3b",
        },
        "figures": figures,
        "rows": rows,
    }


def accounts(seed: int, quick: bool) -> list[dict[str, Any]]:
    """Return how often state is carried the cheaper way, and the memory of engines that are kept."""
    kinds = (H100_8B,) if quick else (H100_8B, H100_14B, A40_8B)
    jobs = []
    for kind in kinds:
        asked = Stage("", kind, 16_384, 512).lengths(str(seed), 0)

        def play(
            random: Random, profiled: bool, kind: Engines = kind, asked: Sequence[Asked] = asked
        ) -> Iterator[Choice]:
            return choices(kind.by_size(), ACCELERATORS, kind.costs(0.0), asked, random, profiled)

        jobs.append((f"{kind.accelerator.name} {kind.model.name}", play))
    found = state_figures(jobs, seed)
    for kind in kinds:
        found += memory_figures(kind.model, kind.accelerator, sorted(kind.by_size()))
    return found


def _printed(seed: int, quick: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    figures: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for paper in PRINTED[:1] if quick else PRINTED:
        stage = Stage(f"PAT Fig. 11c, {paper.engines.model.name} from TP 2", paper.engines, paper.max_tokens, 128)
        play = Play(stage, seed)
        static = {size: play.static(play.asked, size) for size in play.engines}
        ours = play.switched(2)
        figures += printed_figures(stage.name, paper, ours.seconds, static)
        rows.append(
            {
                "setting": stage.name,
                "static_seconds": {str(size): round(seconds, 2) for size, seconds in static.items()},
                "seconds": round(ours.seconds, 2),
                "switches": [(made.start, made.target, made.responses) for made in ours.switches],
            }
        )
    return figures, rows


PREDICTED = (
    (Stage("A40 Llama-3.1-8B 16k 1 x 8, 512", A40_8B, 16_384, 512), 2),
    (Stage("H100 Llama-3.1-8B 24k 1 x 8, 512", H100_8B, 24_576, 512), 2),
)
"""Settings that are predicted for several rounds, and their start."""
ROUNDS = 8


def _rounds(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the error of predicted stages, and the bias of their gains, over rounds of their own.

    All settings of a seed draw the same two rounds, so that their errors go the same way."""
    for stage, start in PREDICTED[:1] if quick else PREDICTED:
        told = [Play(stage, seed + number).told(start) for number in range(1 if quick else ROUNDS)]
        name, error = f"{stage.name}, {len(told)} rounds", fmean(one.error for one in told)
        bias = abs(fmean(one.gain for one in told) / fmean(one.played for one in told) - 1)
        yield figure(f"{name}: error of predicted stages", error, ERROR_GOAL, unit="share", better="lower")
        yield figure(f"{name}: bias of the predicted gain", bias, BIAS_GOAL, unit="share", better="lower")
