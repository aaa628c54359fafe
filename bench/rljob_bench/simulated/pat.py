"""The benchmark `rljob bench pat`: tensor parallelism that changes inside a stage, in the engine model.

Each setting is one stage. The policy knows the lengths of one earlier round, drawn from the same distribution.
Baselines: the best static size in hindsight, the size that `rljob profile` names for responses at their limit, and the
size that is best for the earlier round, which is where the parallelism planner arrives. Limit: the best sequence of at
most three switches in hindsight. PAT's printed algorithm and one rule for all sizes start at the best static size.

Machines of a fleet decide alone, so that a fleet's stage is as long as that of its last machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Any

from rljob_bench.lib.settings import trace_settings
from rljob_bench.simulated.pat_rules import Hindsight, one_rule, printed, sequence_of
from rljob_bench.simulated.what_if import perturbed
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.perf_model.hardware import A40, H100, SGLANG_NVLINK, SGLANG_PCIE, Accelerator, Achieved
from rljob_runtime.perf_model.model_shape import LLAMA3_1_8B, QWEN3_14B, ModelShape
from rljob_runtime.perf_model.roofline import memory, roofline
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchRules
from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Chooser, StageResult, generate
from rljob_runtime.scheduling.adaptive_tp.start import Machine, best_start, predict_starts
from rljob_runtime.scheduling.adaptive_tp.switch_costs import (
    EXPORT_COPY,
    IMPORT_COPY,
    Part,
    SwitchCosts,
    move_byte_seconds,
)
from rljob_runtime.workloads import batch, open_workload

SIZES = (1, 2, 4, 8)
ACCELERATORS = 8
PROMPT_TOKENS = 120
COUNTS = (128, 512, 1024, 2048)
FIXED_SECONDS = (0.0, 0.3, 1.0, 5.5, 20.0, 59.0)
GOAL, LEAST = 0.8, 0.99
"""Share of the limit's gain, and the speed over the best static size where the stage starts with it."""
ABOVE_8K, ABOVE_16K = 0.1085, 0.0218
"""PAT Fig. 3b: shares of DeepScaleR's responses beyond 8K and 16K tokens."""


@dataclass(frozen=True)
class Engines:
    """A model on machines of eight accelerators.

    `fixed`: seconds of a switch without its responses. `link`: bytes a second between an accelerator and its host,
    which bounds the copies of KV beside their measured rates."""

    model: ModelShape
    accelerator: Accelerator
    achieved: Achieved
    fixed: float
    link: float = math.inf

    def by_size(self) -> dict[int, SizedEngine]:
        """Return the engines of every size that fits."""
        found = {}
        for size in SIZES:
            try:
                kept = memory(self.model, self.accelerator, size, use=0.85, prefill_tokens=4096, sequences=256)
                latency = roofline(self.model, self.accelerator, size, self.achieved)
            except ValueError:
                continue  # too large for so few accelerators, or heads that do not divide
            found[size] = SizedEngine(latency, kept.kv_tokens, self.model.kv_token_bytes(size))
        return found

    def costs(self, fixed: float | None = None) -> SwitchCosts:
        """Return the costs of switches: KV moves with checksums, as a job's first prediction has it."""
        none = dict.fromkeys((Part.SLEEP, Part.WAKE, Part.LOAD), 0.0)
        export, imported = (move_byte_seconds(min(rate, self.link)) for rate in (EXPORT_COPY, IMPORT_COPY))
        paid = self.fixed if fixed is None else fixed
        return SwitchCosts({**none, Part.DRAIN: paid, Part.EXPORT: export, Part.IMPORT: imported})

    def kv_rates(self) -> dict[str, float]:
        """Return the bytes a second at which KV is exported and imported, checksums included."""
        costs = self.costs()
        return {part.value: round(1 / costs.unit(1, 2, part)) for part in (Part.EXPORT, Part.IMPORT)}


H100_8B = Engines(LLAMA3_1_8B, H100, SGLANG_NVLINK, 1.0)
H100_14B = Engines(QWEN3_14B, H100, SGLANG_NVLINK, 1.0)
A40_8B = Engines(LLAMA3_1_8B, A40, SGLANG_PCIE, 3.2, 10e9)


@dataclass(frozen=True)
class Stage:
    """A setting: `count` responses of at most `cap` tokens; their lengths are like PAT's, or those of a workload."""

    name: str
    engines: Engines
    cap: int
    count: int
    machines: int = 1
    workload: str | None = None

    def lengths(self, seed: str, step: int) -> list[Asked]:
        """Draw the responses of a round."""
        if self.workload is not None:
            drawn = batch(open_workload(self.workload, 0), step, math.ceil(self.count / 8), 8)
            return [
                Asked(max(1, int(prompt.input_tokens)), min(self.cap, max(1, one.output_tokens)))
                for prompt in drawn.prompts
                for one in prompt.responses
            ]
        return deep_scaler(Random(f"{seed}/{step}"), self.count, self.cap)


def deep_scaler(random: Random, count: int, cap: int, scale: float = 1.0) -> list[Asked]:
    """Draw lognormal lengths with the printed shares above 8K and 16K tokens."""
    first, second = (NormalDist().inv_cdf(1 - share) for share in (ABOVE_8K, ABOVE_16K))
    sigma = math.log(2) / (second - first)
    mean = math.log(8192) - sigma * first + math.log(scale)
    return [Asked(PROMPT_TOKENS, max(1, int(min(cap, math.exp(random.gauss(mean, sigma)))))) for _ in range(count)]


def stages() -> tuple[Stage, ...]:
    """Return the settings of a full run."""
    wide = [(H100_8B, 24_576, 1), (H100_14B, 16_384, 1), (A40_8B, 6_144, 1), (A40_8B, 16_384, 1), (A40_8B, 16_384, 2)]
    return tuple(
        Stage(
            f"{engines.accelerator.name} {engines.model.name} {cap // 1024}k {machines} x 8, {count}",
            engines,
            cap,
            count,
            machines,
        )
        for engines, cap, machines in wide
        for count in COUNTS
    )


QUICK = (Stage("H100 Llama-3.1-8B 24k 1 x 8, 128", H100_8B, 24_576, 128),)


@dataclass(frozen=True)
class Compared:
    """Seconds of a stage, by how it is run; and the policy's switches from its own start and from the best size."""

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

    @property
    def best(self) -> float:
        """Of the best static size in hindsight."""
        return min(self.static.values())


class Play:
    """The plays of one stage. `believed`: what the policy knows of its engines, where that is not the truth."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        fixed: float | None = None,
        believed: Mapping[int, SizedEngine] | None = None,
        past_scale: float = 1.0,
    ) -> None:
        self.stage = stage
        self.engines = stage.engines.by_size()
        costs = stage.engines.costs(fixed)
        self.pairs = costs.table(self.engines, ACCELERATORS)
        asked = stage.lengths(str(seed), 1)
        self.asked = [asked[number :: stage.machines] for number in range(stage.machines)]
        earlier = stage.lengths(str(seed), 0)
        self.earlier = [replace(one, tokens=min(stage.cap, max(1, int(one.tokens * past_scale)))) for one in earlier]
        self.past = [one.tokens for one in self.earlier]
        self.machine = Machine(believed or self.engines, ACCELERATORS, costs, SwitchRules(frozenset(self.engines)))
        self._policy = self.machine.chooser(self.past, stage.cap)

    def static(self, asked: Sequence[Sequence[Asked]], size: int) -> float:
        """Return the seconds of a stage without a switch."""
        return max(self._generate(one, size).seconds for one in asked)

    def switched(self, size: int) -> StageResult:
        """Return the stage with the policy, from this size: that of its last machine, with the most switches of any."""
        return _last([self._generate(one, size, self._policy) for one in self.asked])

    def start(self) -> int:
        """Return the start that the policy predicts to be the best, from the earlier round."""
        own = self.earlier[:: self.stage.machines]
        return best_start(predict_starts(self.machine, own, self.past, self.stage.cap)) or SIZES[0]

    def compare(self) -> Compared:
        """Play everything."""
        static = {size: self.static(self.asked, size) for size in self.engines}
        best = min(static, key=lambda size: static[size])
        most = [[replace(one, tokens=self.stage.cap) for one in asked] for asked in self.asked]
        profiled = min(self.engines, key=lambda size: self.static(most, size))
        earlier = [self.earlier[number :: self.stage.machines] for number in range(self.stage.machines)]
        planned = min(self.engines, key=lambda size: self.static(earlier, size))
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
            self.stage, static, static[profiled], static[planned], ours, from_best, rules[0], rules[1], limit, start
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
    if traces is None:
        printed_figures, printed_rows = _papers(seed, quick)
        figures += printed_figures
        rows += [*printed_rows, *_sensitivity(seed, quick)]
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


def recorded(folder: Path, quick: bool) -> tuple[Stage, ...]:
    """Return a stage of each trace and number of responses, on H100 with the model of the trace's size."""
    found = []
    for setting in trace_settings(folder):
        engines = Engines(setting.model, H100, SGLANG_NVLINK, 1.0)
        for count in COUNTS[:1] if quick else COUNTS:
            name = f"{setting.name} H100 {setting.model.name}, {count}"
            found.append(Stage(name, engines, setting.longest, count, workload=setting.workload))
    return tuple(found)


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


PAPERS = ((H100_8B, 24_576, 0.346), (H100_14B, 16_384, 0.320))
"""PAT Fig. 11c: 128 responses on one H100 server from TP 2, and the printed share of the time that is saved."""


def _papers(seed: int, quick: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    figures, rows = [], []
    for engines, cap, goal in PAPERS[:1] if quick else PAPERS:
        stage = Stage(f"PAT Fig. 11c, {engines.model.name} from TP 2", engines, cap, 128)
        play = Play(stage, seed)
        static = {size: play.static(play.asked, size) for size in play.engines}
        ours = play.switched(2)
        saved, limit = 1 - ours.seconds / static[2], 1 - min(static.values()) / static[2]
        figures.append(figure(f"{stage.name}: time saved", saved, goal, "PAT", unit="share"))
        figures.append(figure(f"{stage.name}: time saved by the best static size", limit, unit="share"))
        rows.append(
            {
                "setting": stage.name,
                "static_seconds": {str(size): round(seconds, 2) for size, seconds in static.items()},
                "seconds": round(ours.seconds, 2),
                "switches": [(made.start, made.target, made.responses) for made in ours.switches],
            }
        )
    return figures, rows


def _sensitivity(seed: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the same stage, started at the best static size, with other costs, wrong models, and changed lengths."""
    count = 128 if quick else 1024
    stage = Stage(f"H100 Llama-3.1-8B 24k 1 x 8, {count}", H100_8B, 24_576, count)
    cases: dict[str, Play] = {}
    for fixed in FIXED_SECONDS[:2] if quick else FIXED_SECONDS:
        cases[f"a switch of {fixed:g} s"] = Play(stage, seed, fixed=fixed)
    for number in range(1 if quick else 6):
        random = Random(number)
        truth = stage.engines.by_size()
        believed = {size: replace(one, latency=perturbed(one.latency, random)) for size, one in truth.items()}
        cases[f"models off by up to 30 %, {number}"] = Play(stage, seed, believed=believed)
    for scale in (0.5, 2.0):
        cases[f"lengths {1 / scale:g} x those of the earlier round"] = Play(stage, seed, past_scale=scale)
    for name, play in cases.items():
        static = {size: play.static(play.asked, size) for size in play.engines}
        best = min(static, key=lambda size: static[size])
        ours = play.switched(best)
        yield {
            "setting": f"{stage.name}: {name}",
            "best_static": best,
            "best_static_seconds": round(static[best], 2),
            "seconds_from_best": round(ours.seconds, 2),
            "speed": round(static[best] / ours.seconds, 4),
            "switches": [(made.start, made.target, made.responses) for made in ours.switches],
        }
