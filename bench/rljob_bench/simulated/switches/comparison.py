"""Comparison: a stage of `rljob bench pat` with the policy, its baselines and its limit, and what is lost of the limit.

The loss has three parts, each the difference of two plays. From the policy's own start to the start that is best for it
in hindsight; from there to a policy that knows the lengths of the stage; from there to the best sequence in hindsight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean
from typing import Any

from rljob_bench.simulated.pat_rules import Hindsight, SwitchSequence, one_rule, printed, sequence_of
from rljob_bench.simulated.pat_stages import ACCELERATORS, Stage
from rljob_bench.simulated.switches.stage_play import Play
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.scheduling.adaptive_tp.stage import StageResult

GOAL, LEAST = 0.8, 0.99
"""Share of the limit's gain, and the speed over the best static size where the stage starts with it."""
ERROR_GOAL, BIAS_GOAL = 0.05, 0.1
"""Of predicted stages, and of the gain that their switches are predicted to have."""


class Lost(StrEnum):
    """By what a part of the limit's gain is lost, in the order of `Compared.losses`."""

    START = "the start"
    KNOWLEDGE = "knowledge of lengths"
    POLICY = "the policy"


@dataclass(frozen=True)
class Compared:
    """Seconds of a stage, by how it is run; and the policy's switches from its own start and from the best size.

    `best_start`: the policy's stage from the start that is best for it. `informed`: the same with the stage's own
    lengths known. `repeated`: with the switch that is best for the earlier round. `predicted`: the policy's own stage
    on the lengths of the earlier round. `predicted_never`: the same without a switch.
    """

    stage: Stage
    static: Mapping[int, float]
    profiled: float
    planned: float
    ours: StageResult
    ours_from_best: StageResult
    best_start: StageResult
    informed: StageResult
    repeated: float
    printed: StageResult
    one_rule: StageResult
    limit: float
    start: int
    predicted: StageResult
    predicted_never: float

    @property
    def error(self) -> float:
        """Share by which its own stage was predicted too long or too short."""
        return abs(self.predicted.seconds / self.ours.seconds - 1)

    @property
    def error_of_lengths(self) -> float:
        """The same without a switch: what the lengths of one earlier round do not tell."""
        return abs(self.predicted_never / self.static[self.start] - 1)

    @property
    def losses(self) -> dict[Lost, float]:
        """What is lost of the limit, in shares of the best static time: their sum is the whole loss.

        What the policy does not know of this stage's lengths may help it by chance, so that part may be negative."""
        steps = (self.ours.seconds, self.best_start.seconds, self.informed.seconds, self.limit)
        return {lost: (before - after) / self.best for lost, (before, after) in zip(Lost, pairwise(steps), strict=True)}

    @property
    def best(self) -> float:
        """Of the best static size in hindsight."""
        return min(self.static.values())


def best_switch(play: Play) -> SwitchSequence:
    """Return the start and the switch, or none, that are best for the earlier round in hindsight.

    A policy that does not know this stage's lengths could choose them."""
    return Hindsight(play.own_earlier, play.engines, ACCELERATORS, play.pairs, most=1).best_sequence()


def compare(play: Play) -> Compared:
    """Play everything."""
    static = {size: play.static(play.asked, size) for size in play.engines}
    best = min(static, key=lambda size: static[size])
    start, cap = play.start(), play.stage.cap
    ours = {size: play.switched(size) for size in play.engines}
    best_start = min(ours, key=lambda size: (ours[size].seconds, size))
    informed = play.informed(best_start)
    tried = {(size, sequence_of(result)) for size, result in [*ours.items(), (best_start, informed)]}
    searches = [Hindsight(one, play.engines, ACCELERATORS, play.pairs) for one in play.asked]
    found = max(search.best(sorted(tried)).seconds for search in searches)
    played = [*ours.values(), informed]
    earlier_best = best_switch(play)
    repeated = max(search.play(earlier_best).seconds for search in searches)
    return Compared(
        stage=play.stage,
        static=static,
        profiled=static[play.profiled],
        planned=static[play.start(switches=False)],
        ours=ours[start],
        ours_from_best=ours[best],
        best_start=ours[best_start],
        informed=informed,
        repeated=repeated,
        printed=play.chosen(best, printed(play.engines, play.pairs, cap)),
        one_rule=play.chosen(best, one_rule(play.engines, play.pairs, cap)),
        limit=min(found, repeated, *(one.seconds for one in played), *static.values()),
        start=start,
        predicted=play.predicted(start),
        predicted_never=play.predicted_never(start),
    )


def comparison_figures(one: Compared) -> Iterator[dict[str, Any]]:
    """Yield the speeds of one stage."""
    limit = one.best / one.limit
    name = one.stage.name
    yield figure(f"{name}: over the best static size", one.best / one.ours.seconds, LEAST, "hindsight", limit)
    yield figure(f"{name}: from the best static size", one.best / one.ours_from_best.seconds, LEAST, "hindsight", limit)
    yield figure(f"{name}: over the profile's size", one.profiled / one.ours.seconds, limit=one.profiled / one.limit)
    yield figure(f"{name}: over the planner's size", one.planned / one.ours.seconds, limit=one.planned / one.limit)


def summary(compared: Sequence[Compared]) -> Iterator[dict[str, Any]]:
    """Yield the goals over all settings. Gains are shares of the best static time, so that settings weigh alike."""
    reached = sum(1 - one.ours.seconds / one.best for one in compared)
    possible = sum(1 - one.limit / one.best for one in compared)
    yield figure("gain of the best sequence", reached / max(possible, 1e-9), GOAL, "hindsight", 1.0, unit="share")
    repeated = sum(1 - one.repeated / one.best for one in compared) / max(possible, 1e-9)
    yield figure("gain of the switch that is best for the earlier round", repeated, limit=1.0, unit="share")
    for lost in Lost:
        share = sum(one.losses[lost] for one in compared) / max(possible, 1e-9)
        yield figure(f"gain that is lost by {lost.value}", share, unit="share", better="lower")
    worst = min(one.best / one.ours_from_best.seconds for one in compared)
    yield figure("worst speed over the best static size, started there", worst, LEAST)
    most = max(len(result.switches) for one in compared for result in (one.ours, one.ours_from_best))
    yield figure("most switches of a stage", most, 3, unit="count", better="lower")
    error, lengths = fmean(one.error for one in compared), fmean(one.error_of_lengths for one in compared)
    yield figure("error of predicted stages", error, ERROR_GOAL, "no switch", lengths, unit="share", better="lower")
    told = sum(1 - one.predicted.seconds / one.predicted_never for one in compared)
    played = sum(1 - one.ours.seconds / one.static[one.start] for one in compared)
    bias = abs(told - played) / max(abs(played), 1e-9)
    yield figure("bias of the predicted gain over never switching", bias, BIAS_GOAL, unit="share", better="lower")
    printed_ = [one.best / one.printed.seconds for one in compared]
    yield figure("worst speed of the printed algorithm", min(printed_), limit=1.0)
    yield figure("best speed of the printed algorithm", max(printed_), limit=1.0)


def row(one: Compared) -> dict[str, Any]:
    """Return the seconds of one stage."""
    return {
        "setting": one.stage.name,
        "static_seconds": {str(size): round(seconds, 2) for size, seconds in one.static.items()},
        "profile_seconds": round(one.profiled, 2),
        "planner_seconds": round(one.planned, 2),
        "start": one.start,
        "predicted_seconds": round(one.predicted.seconds, 2),
        "predicted_seconds_without_a_switch": round(one.predicted_never, 2),
        "seconds": round(one.ours.seconds, 2),
        "switches": [(made.start, made.target, made.responses) for made in one.ours.switches],
        "seconds_from_best": round(one.ours_from_best.seconds, 2),
        "switches_from_best": [(made.start, made.target, made.responses) for made in one.ours_from_best.switches],
        "seconds_from_the_best_start": round(one.best_start.seconds, 2),
        "seconds_with_known_lengths": round(one.informed.seconds, 2),
        "seconds_with_the_earlier_rounds_best_switch": round(one.repeated, 2),
        "lost_shares": {lost.value: round(share, 4) for lost, share in one.losses.items()},
        "limit_seconds": round(one.limit, 2),
        "printed_seconds": round(one.printed.seconds, 2),
        "printed_switches": len(one.printed.switches),
        "one_rule_seconds": round(one.one_rule.seconds, 2),
        "one_rule_switches": len(one.one_rule.switches),
    }
