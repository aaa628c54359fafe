"""Switch predictions: how steps, and the gains of switches, were predicted in rounds that were played by turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from rljob_bench.lib.turns import Glance, Played, Way
from rljob_runtime.cli.bench_result import figure

ERROR_GOAL, BIAS_GOAL = 0.05, 0.1
BUCKETS = (2, 8, 32, 128, 1 << 30)
"""Most responses of a row of predicted and measured speed."""
FEWEST_STEPS = 20


def prediction_figures(played: Mapping[int, Sequence[Played]]) -> list[dict[str, Any]]:
    """Return the errors of predicted steps and gains. `played`: rounds by the number of their responses."""
    rounds = [one for its in played.values() for one in its]
    gains = [gain for its in played.values() for gain in gains_of(its)]
    return [*_step_errors(rounds), *_gain_figures(gains)]


# --- steps ---


@dataclass(frozen=True)
class Stretch:
    """Steps of one replica between two looks."""

    size: int
    responses: int
    steps: int
    seconds: float
    predicted: float


def stretches_of(played: Played) -> list[Stretch]:
    """Return the steps of a round without switches, predicted by what was known of its engines at its first look."""
    found = []
    for before, after in pairwise(played.glances):
        model = played.engines.get(before.size)
        if model is None or before.waiting or after.waiting or before.size != after.size:
            continue
        for name in before.running.keys() & after.running.keys():
            if (steps := _steps(before, after, name)) > 0:
                ends = [model.latency.step(*glance.running[name]) for glance in (before, after)]
                count, seconds = before.running[name][0], after.at - before.at
                found.append(Stretch(before.size, count, steps, seconds, steps * fmean(ends)))
    return found


def _steps(before: Glance, after: Glance, replica: str) -> int:
    earlier, later = before.tokens.get(replica, {}), after.tokens.get(replica, {})
    return max((later[key] - earlier[key] for key in earlier.keys() & later.keys()), default=0)


def _step_errors(rounds: Sequence[Played]) -> Iterator[dict[str, Any]]:
    static = [played for played in rounds if played.turn.way is Way.STATIC and played.turn.block > 0]
    for size in sorted({played.size for played in static}):
        errors = []
        for played in static:
            its = stretches_of(played) if played.size == size else []
            if sum(one.steps for one in its) >= FEWEST_STEPS:
                errors.append(abs(sum(one.predicted for one in its) / sum(one.seconds for one in its) - 1))
        if errors:
            yield figure(
                f"predictor: error of size {size}", fmean(errors), ERROR_GOAL, "PAT §5.5: 0.040 and 0.031",
                unit="share", better="lower",
            )  # fmt: skip


def speed_rows(rounds: Sequence[Played]) -> Iterator[dict[str, Any]]:
    """Yield predicted and measured steps by size and responses of an engine, as PAT Fig. 14 has them."""
    its: dict[tuple[int, int], list[Stretch]] = defaultdict(list)
    for played in rounds:
        if played.turn.way is Way.STATIC:
            for one in stretches_of(played):
                its[one.size, next(most for most in BUCKETS if one.responses <= most)].append(one)
    for (size, most), stretches in sorted(its.items()):
        steps = sum(one.steps for one in stretches)
        yield {
            "size": size,
            "responses_of_an_engine": f"up to {most}" if most < BUCKETS[-1] else f"more than {BUCKETS[-2]}",
            "steps": steps,
            "step_seconds": round(sum(one.seconds for one in stretches) / steps, 5),
            "predicted_step_seconds": round(sum(one.predicted for one in stretches) / steps, 5),
        }


# --- gains ---


@dataclass(frozen=True)
class Gain:
    """Seconds that the switches of a round saved, as predicted and as measured; both may be negative."""

    way: Way
    predicted: float
    measured: float


def gains_of(played: Sequence[Played]) -> list[Gain]:
    """Return the gain of each round that switched: over the round of the same lengths and start without a switch.

    The first switch is the one whose gain was predicted with all that follow it."""
    static = {(one.turn.block, one.size): one for one in played if one.turn.way is Way.STATIC}
    found = []
    for one in played:
        made = [switch for switch in one.switches if switch.succeeded]
        never = static.get((one.turn.block, one.size))
        if one.turn.way in (Way.ADAPTIVE, Way.PLANNED) and made and never is not None:
            decision = made[0].decision
            if decision is not None and decision.gain is not None:
                found.append(Gain(one.turn.way, decision.gain, never.seconds - one.seconds))
    return found


def _gain_figures(gains: Sequence[Gain]) -> Iterator[dict[str, Any]]:
    """Yield predicted and measured gains, and how far apart they are.

    A planned switch that is not worth it may lose time, so that gains may cancel out: a ratio of their sums would be
    that of two small numbers. The bias is a share of all that was gained or lost."""
    for way in (Way.ADAPTIVE, Way.PLANNED):
        its = [one for one in gains if one.way is way]
        yield figure(f"gain: {way.value} rounds that switched", len(its), unit="count")
        if its:
            yield figure(f"gain: {way.value} rounds, predicted", fmean(one.predicted for one in its), unit="s")
            yield figure(f"gain: {way.value} rounds, measured", fmean(one.measured for one in its), unit="s")
    if (saved := sum(one.measured for one in gains)) > 0:
        ratio = sum(one.predicted for one in gains) / saved
        yield figure("gain: predicted over measured", ratio, 1.0, unit="ratio", better="nearest")
    if total := sum(abs(one.measured) for one in gains):
        bias = abs(sum(one.predicted - one.measured for one in gains)) / total
        yield figure("gain: bias", bias, BIAS_GOAL, unit="share", better="lower")
