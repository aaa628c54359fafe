"""Sensitivity of `rljob bench pat`: the policy with other costs, wrong models of its engines, and lengths that change.

Each stage starts at the best static size. With wrong models it also starts where the parallelism planner arrives by
them: an engine is observed once its size has run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from random import Random
from typing import Any

from rljob_bench.simulated.pat_stages import A40_8B, H100_8B, H100_14B, Stage
from rljob_bench.simulated.switches.comparison import LEAST
from rljob_bench.simulated.switches.stage_play import Play
from rljob_bench.simulated.what_if import perturbed
from rljob_runtime.cli.bench_result import figure

FIXED_SECONDS = (0.0, 0.3, 1.0, 5.5, 20.0, 59.0)
"""Of a switch without its responses."""
WRONG_MODELS = 6
"""Machines whose engines are believed to be others."""
SCALES = (0.5, 2.0)
"""Lengths of the earlier round over those of its distribution."""
STAGES = (
    Stage("H100 Llama-3.1-8B 24k 1 x 8, 1024", H100_8B, 24_576, 1024),
    Stage("H100 Qwen3-14B 16k 1 x 8, 1024", H100_14B, 16_384, 1024),
    Stage("A40 Llama-3.1-8B 16k 1 x 8, 512", A40_8B, 16_384, 512),
)
QUICK_STAGE = Stage("H100 Llama-3.1-8B 24k 1 x 8, 128", H100_8B, 24_576, 128)


class Wrong(StrEnum):
    """What the policy does not know, or what differs from the settings."""

    COST = "other costs of a switch"
    MODELS = "models off by up to 30 %"
    LENGTHS = "lengths that change"


def sensitivity_figures(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the worst speed over the best static size, for each kind of a wrong assumption and each start."""
    for wrong in Wrong:
        its = [row for row in rows if row["wrong"] == wrong.value]
        name = "worst speed over the best static size"
        yield figure(f"{name}, started there, with {wrong.value}", min(row["speed"] for row in its), LEAST)
        if started := [row["speed_from_start"] for row in its if "speed_from_start" in row]:
            yield figure(f"{name}, from the planner's start, with {wrong.value}", min(started), LEAST)


def sensitivity(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield each stage with other costs, wrong models, and changed lengths."""
    for stage in (QUICK_STAGE,) if quick else STAGES:
        for name, wrong, play in _cases(stage, seed, quick):
            yield {"setting": f"{stage.name}: {name}", "wrong": wrong.value, **_row(play, wrong)}


def _cases(stage: Stage, seed: int, quick: bool) -> Iterator[tuple[str, Wrong, Play]]:
    for fixed in FIXED_SECONDS[:2] if quick else FIXED_SECONDS:
        yield f"a switch of {fixed:g} s", Wrong.COST, Play(stage, seed, fixed=fixed)
    for number in range(1 if quick else WRONG_MODELS):
        random = Random(number)
        truth = stage.engines.by_size()
        believed = {size: replace(one, latency=perturbed(one.latency, random)) for size, one in truth.items()}
        yield f"{Wrong.MODELS}, {number}", Wrong.MODELS, Play(stage, seed, believed=believed)
    for scale in SCALES:
        name = f"lengths {1 / scale:g} x those of the earlier round"
        yield name, Wrong.LENGTHS, Play(stage, seed, past_scale=scale)


def _row(play: Play, wrong: Wrong) -> dict[str, Any]:
    static = {size: play.static(play.asked, size) for size in play.engines}
    best = min(static, key=lambda size: static[size])
    ours = play.switched(best)
    found = {
        "best_static": best,
        "best_static_seconds": round(static[best], 2),
        "seconds_from_best": round(ours.seconds, 2),
        "speed": round(static[best] / ours.seconds, 4),
        "switches": [(made.start, made.target, made.responses) for made in ours.switches],
    }
    if wrong is not Wrong.MODELS:
        return found
    start = play.start()
    started = ours if start == best else play.switched(start)
    return {
        **found,
        "start": start,
        "seconds_from_start": round(started.seconds, 2),
        "speed_from_start": round(static[best] / started.seconds, 4),
        "switches_from_start": [(made.start, made.target, made.responses) for made in started.switches],
    }
