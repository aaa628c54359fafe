"""The settings of `rljob bench pat`: engines, numbers of responses, and their lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import NormalDist

from rljob_bench.lib.settings import trace_settings
from rljob_runtime.perf_model.hardware import A40, H100, SGLANG_NVLINK, SGLANG_PCIE, Accelerator, Achieved
from rljob_runtime.perf_model.model_shape import LLAMA3_1_8B, QWEN3_14B, ModelShape
from rljob_runtime.perf_model.roofline import memory, roofline
from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine
from rljob_runtime.scheduling.adaptive_tp.stage import Asked
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


def recorded(folder: Path, quick: bool) -> tuple[Stage, ...]:
    """Return a stage of each trace and number of responses, on H100 with the model of the trace's size."""
    found = []
    for setting in trace_settings(folder):
        engines = Engines(setting.model, H100, SGLANG_NVLINK, 1.0)
        for count in COUNTS[:1] if quick else COUNTS:
            name = f"{setting.name} H100 {setting.model.name}, {count}"
            found.append(Stage(name, engines, setting.longest, count, workload=setting.workload))
    return tuple(found)
