"""The benchmark `rljob bench pat`: tensor parallelism that changes inside a stage, in the engine model.

Each setting is one stage. The policy knows the lengths of one earlier round, drawn from the same distribution.
A job begins in the size that `rljob profile` names for responses at their limit. The parallelism planner then moves it
by what four earlier rounds predict, with switches for the policy (`pat_starts`). Baselines: the best static size in
hindsight, the profile's size, and the size that the planner arrives at without switches. Limit: the best sequence of at
most three switches in hindsight. PAT's printed algorithm and one rule for all sizes start at the best static size.

Machines of a fleet decide alone, so that a fleet's stage is as long as that of its last machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from rljob_bench.simulated.pat_accounts import Choice, choices, memory_figures, state_figures
from rljob_bench.simulated.pat_printed import PRINTED, printed_figures
from rljob_bench.simulated.pat_rules import Hindsight, one_rule, printed, sequence_of
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
from rljob_bench.simulated.pat_starts import START_ROUNDS, Forecasts, arrived, predicted_starts
from rljob_bench.simulated.what_if import perturbed
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.scheduling.adaptive_tp import stage as engine_stage
from rljob_runtime.scheduling.adaptive_tp.forecast import Machine
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchRules
from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Chooser, StageResult, generate

FIXED_SECONDS = (0.0, 0.3, 1.0, 5.5, 20.0, 59.0)
GOAL, LEAST = 0.8, 0.99
"""Share of the limit's gain, and the speed over the best static size where the stage starts with it."""
ERROR_GOAL, BIAS_GOAL = 0.05, 0.1
"""Of predicted stages, and of the gain that their switches are predicted to have."""


@dataclass(frozen=True)
class Compared:
    """Seconds of a stage, by how it is run; and the policy's switches from its own start and from the best size.

    `predicted`: its own stage on the lengths of the earlier round. `predicted_never`: the same without a switch."""

    stage: Stage
    static: Mapping[int, float]
    profiled: float
    planned: float
    ours: StageResult
    ours_from_best: StageResult
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
    def best(self) -> float:
        """Of the best static size in hindsight."""
        return min(self.static.values())


@dataclass(frozen=True)
class Told:
    """How well a stage is predicted.

    `gain`, `played`: share of the seconds without a switch that switches save, as predicted and as played. `error`:
    relative error of the predicted seconds of the stage."""

    gain: float
    played: float
    error: float


class Play:
    """The plays of one stage, in the sizes that hold a longest response.

    `believed`: what the policy knows of its engines, where that is not the truth. A size that runs is observed, and
    known from then on."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        fixed: float | None = None,
        believed: Mapping[int, SizedEngine] | None = None,
        past_scale: float = 1.0,
    ) -> None:
        self.stage = stage
        self._seed = seed
        asked, earlier = stage.lengths(str(seed), 1), stage.lengths(str(seed), 0)
        longest = stage.cap + max(one.prompt_tokens for one in (*asked, *earlier))
        self.engines = {size: one for size, one in stage.engines.by_size().items() if longest <= one.kv_tokens}
        costs = stage.engines.costs(fixed)
        self.pairs = costs.table(self.engines, ACCELERATORS)
        self.asked = [asked[number :: stage.machines] for number in range(stage.machines)]
        self.earlier = [replace(one, tokens=min(stage.cap, max(1, int(one.tokens * past_scale)))) for one in earlier]
        self.past = [one.tokens for one in self.earlier]
        self.machine = Machine(believed or self.engines, ACCELERATORS, costs, SwitchRules(frozenset(self.engines)))
        self._policy = self.machine.chooser(self.past, stage.cap) if believed is None else self._observing

    def static(self, asked: Sequence[Sequence[Asked]], size: int) -> float:
        """Return the seconds of a stage without a switch."""
        return max(self._generate(one, size).seconds for one in asked)

    def switched(self, size: int) -> StageResult:
        """Return the stage with the policy, from this size: that of its last machine, with the most switches of any."""
        return _last([self._generate(one, size, self._policy) for one in self.asked])

    def _observing(self, running: engine_stage.Stage) -> int | None:
        """Decide with the true models of the sizes that ran in this stage, and the believed ones of others."""
        ran = {running.tensor_parallel, *(made.start for made in running.switches)}
        engines = {size: self.engines[size] if size in ran else one for size, one in self.machine.engines.items()}
        return replace(self.machine, engines=engines).chooser(self.past, self.stage.cap)(running)

    @property
    def _own(self) -> list[Asked]:
        """The first machine's part of the earlier round."""
        return self.earlier[:: self.stage.machines]

    @cached_property
    def profiled(self) -> int:
        """Return the size that a profile names: the best one for responses at their limit."""
        most = [[replace(one, tokens=self.stage.cap) for one in asked] for asked in self.asked]
        return min(self.engines, key=lambda size: self.static(most, size))

    @cached_property
    def forecasts(self) -> Forecasts:
        """Return the seconds of a stage that a coordinator predicts for each start from earlier rounds."""
        stage = self.stage
        rounds = [self.earlier, *(stage.lengths(str(self._seed), number) for number in range(2, START_ROUNDS + 1))]
        return predicted_starts(self.machine, rounds, stage.machines, stage.cap)

    def start(self, switches: bool = True) -> int:
        """Return the size that the parallelism planner arrives at from the profile's size."""
        predicted = self.forecasts.switched if switches else self.forecasts.without
        return arrived(self.profiled, predicted, ACCELERATORS)

    def predicted(self, start: int) -> StageResult:
        """Return the stage that the policy predicts from this size: that of the earlier round."""
        return self._generate(self._own, start, self._policy)

    def told(self, start: int) -> Told:
        """Return how well the stage from this size is predicted."""
        predicted, never = self.predicted(start).seconds, self._generate(self._own, start).seconds
        played = self.switched(start).seconds
        return Told(1 - predicted / never, 1 - played / self.static(self.asked, start), abs(predicted / played - 1))

    def compare(self) -> Compared:
        """Play everything."""
        static = {size: self.static(self.asked, size) for size in self.engines}
        best = min(static, key=lambda size: static[size])
        start = self.start()
        ours, from_best = self.switched(start), self.switched(best)
        rules = [
            _last([self._generate(one, best, rule(self.engines, self.pairs, self.stage.cap)) for one in self.asked])
            for rule in (printed, one_rule)
        ]
        tried = [(size, sequence_of(result)) for size, result in ((start, ours), (best, from_best))]
        found = max(Hindsight(one, self.engines, ACCELERATORS, self.pairs).best(tried).seconds for one in self.asked)
        limit = min(found, ours.seconds, from_best.seconds, *static.values())
        return Compared(
            self.stage,
            static,
            static[self.profiled],
            static[self.start(switches=False)],
            ours,
            from_best,
            rules[0],
            rules[1],
            limit,
            start,
            self.predicted(start),
            self._generate(self._own, start).seconds,
        )

    def _generate(self, asked: Sequence[Asked], size: int, choose: Chooser | None = None) -> StageResult:
        return generate(asked, size, self.engines, ACCELERATORS, self.pairs, choose)


def _last(results: Sequence[StageResult]) -> StageResult:
    last = max(results, key=lambda one: one.seconds)
    return replace(last, switches=max((one.switches for one in results), key=len))


def pat(*, quick: bool, seed: int, traces: Path | None = None) -> dict[str, Any]:
    """Measure on lengths like PAT's, or, with `traces`, on recorded ones instead. Raises `TraceError`."""
    chosen = recorded(traces, quick) if traces is not None else QUICK if quick else stages()
    compared = [Play(stage, seed).compare() for stage in chosen]
    figures = [one for each in compared for one in _figures(each)]
    figures += _summary(compared)
    rows = [_row(each) for each in compared]
    figures += _accounts(seed, quick)
    if traces is None:
        paper_figures, printed_rows = _printed(seed, quick)
        figures += paper_figures
        sensitivity = list(_sensitivity(seed, quick))
        figures += [*_worst(sensitivity), *_rounds(seed, quick)]
        rows += [*printed_rows, *sensitivity]
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


def _figures(one: Compared) -> Iterator[dict[str, Any]]:
    limit = one.best / one.limit
    name = one.stage.name
    yield figure(f"{name}: over the best static size", one.best / one.ours.seconds, LEAST, "hindsight", limit)
    yield figure(f"{name}: from the best static size", one.best / one.ours_from_best.seconds, LEAST, "hindsight", limit)
    yield figure(f"{name}: over the profile's size", one.profiled / one.ours.seconds, limit=one.profiled / one.limit)
    yield figure(f"{name}: over the planner's size", one.planned / one.ours.seconds, limit=one.planned / one.limit)


def _summary(compared: Sequence[Compared]) -> Iterator[dict[str, Any]]:
    """Yield the goals over all settings. Gains are shares of the best static time, so that settings weigh alike."""
    reached = sum(1 - one.ours.seconds / one.best for one in compared)
    possible = sum(1 - one.limit / one.best for one in compared)
    yield figure("gain of the best sequence", reached / max(possible, 1e-9), GOAL, "hindsight", 1.0, unit="share")
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


def _row(one: Compared) -> dict[str, Any]:
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
        "limit_seconds": round(one.limit, 2),
        "printed_seconds": round(one.printed.seconds, 2),
        "printed_switches": len(one.printed.switches),
        "one_rule_seconds": round(one.one_rule.seconds, 2),
        "one_rule_switches": len(one.one_rule.switches),
    }


def _accounts(seed: int, quick: bool) -> list[dict[str, Any]]:
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
    for kind in kinds[:2]:
        found += memory_figures(kind.model, sorted(kind.by_size()))
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


class Wrong(StrEnum):
    """What the policy does not know, or what differs from the settings."""

    COST = "other costs of a switch"
    MODELS = "models off by up to 30 %"
    LENGTHS = "lengths that change"


def _worst(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the worst speed over the best static size, started there, for each kind of a wrong assumption."""
    for wrong in Wrong:
        worst = min(row["speed"] for row in rows if row["wrong"] == wrong.value)
        yield figure(f"worst speed over the best static size, started there, with {wrong.value}", worst, LEAST)


def _sensitivity(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the same stage, started at the best static size, with other costs, wrong models, and changed lengths."""
    count = 128 if quick else 1024
    stage = Stage(f"H100 Llama-3.1-8B 24k 1 x 8, {count}", H100_8B, 24_576, count)
    cases: dict[str, tuple[Wrong, Play]] = {}
    for fixed in FIXED_SECONDS[:2] if quick else FIXED_SECONDS:
        cases[f"a switch of {fixed:g} s"] = Wrong.COST, Play(stage, seed, fixed=fixed)
    for number in range(1 if quick else 6):
        random = Random(number)
        truth = stage.engines.by_size()
        believed = {size: replace(one, latency=perturbed(one.latency, random)) for size, one in truth.items()}
        cases[f"{Wrong.MODELS}, {number}"] = Wrong.MODELS, Play(stage, seed, believed=believed)
    for scale in (0.5, 2.0):
        cases[f"lengths {1 / scale:g} x those of the earlier round"] = (
            Wrong.LENGTHS,
            Play(stage, seed, past_scale=scale),
        )
    for name, (wrong, play) in cases.items():
        static = {size: play.static(play.asked, size) for size in play.engines}
        best = min(static, key=lambda size: static[size])
        ours = play.switched(best)
        yield {
            "setting": f"{stage.name}: {name}",
            "wrong": wrong.value,
            "best_static": best,
            "best_static_seconds": round(static[best], 2),
            "seconds_from_best": round(ours.seconds, 2),
            "speed": round(static[best] / ours.seconds, 4),
            "switches": [(made.start, made.target, made.responses) for made in ours.switches],
        }
