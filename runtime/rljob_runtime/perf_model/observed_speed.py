"""The latency law of engines that nobody profiled, from what they did in the job's own rounds.

An engine that is polled tells how many requests run, how many tokens it made and how full its KV cache is. Between two
polls it did so many decode steps of about one batch and one context: a `SpeedSample`. One that begins with a
launch has the prompts' prefill in it too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.least_squares import Floats, nonnegative

KINKS = (64, 256)
"""Batches at which a step may begin to rise faster; the ridge of the roofline is near one of them."""
LARGEST = 4 * KINKS[-1]


@dataclass(frozen=True)
class SpeedSample:
    """Decode steps in a row. `batch`: sequences at a time; `context`: tokens in the KV cache, of all of them; both are
    means over the steps. `seconds`: of all steps, and of the prefill of `prompt_tokens`. `lent`: while other machines
    of the round were lent to training, and theirs was to be done too."""

    steps: float
    batch: float
    context: float
    seconds: float
    prompt_tokens: int = 0
    lent: bool = False

    @classmethod
    def joined(cls, samples: Sequence[SpeedSample]) -> SpeedSample:
        """All of these as one; of one bin. Raises `ZeroDivisionError` for none."""
        steps = math.fsum(one.steps for one in samples)
        batch = math.fsum(one.steps * one.batch for one in samples) / steps
        context = math.fsum(one.steps * one.context for one in samples) / steps
        prompts = sum(one.prompt_tokens for one in samples)
        return cls(steps, batch, context, math.fsum(one.seconds for one in samples), prompts, samples[0].lent)

    @property
    def bin(self) -> tuple[bool, int, int, bool]:
        """Stretches of about one batch and context, by factors of √2, are alike."""
        mean = max(1.0, self.context / self.batch)
        sizes = round(2 * math.log2(max(1.0, self.batch))), round(2 * math.log2(mean))
        return bool(self.prompt_tokens), *sizes, self.lent


@dataclass(frozen=True)
class Speed:
    """What engines did in a round. `kv_tokens` and `max_running`: of one engine, 0 where it could not tell."""

    replicas: int = 0
    kv_tokens: int = 0
    max_running: int = 0
    stretches: tuple[SpeedSample, ...] = ()

    @property
    def decode(self) -> tuple[SpeedSample, ...]:
        """Those without prefill."""
        return tuple(one for one in self.stretches if not one.prompt_tokens)

    def to_json(self) -> str:
        """As `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Speed:
        """What `to_json` gave."""
        told: dict[str, Any] = json.loads(text)
        return cls(**{**told, "stretches": tuple(SpeedSample(**one) for one in told["stretches"])})


def binned(samples: Iterable[SpeedSample]) -> tuple[SpeedSample, ...]:
    """Those that are alike as one: a round's worth is a few dozen."""
    bins: dict[tuple[bool, int, int, bool], list[SpeedSample]] = {}
    for one in samples:
        bins.setdefault(one.bin, []).append(one)
    return tuple(SpeedSample.joined(bins[key]) for key in sorted(bins))


def fit_latency(speeds: Sequence[Speed]) -> LatencyModel | None:
    """Least squares of relative errors, a stretch weighing as much as it took; no coefficient is below zero. None where
    nothing was seen."""
    seen = [one for speed in speeds for one in speed.stretches]
    if not seen:
        return None
    rows = np.array([[*(one.steps * value for value in _step(one)), one.prompt_tokens] for one in seen])
    seconds: Floats = np.array([one.seconds for one in seen])
    weight: Floats = np.sqrt(seconds)
    fixed, slope, context, *rises, prompt = map(float, nonnegative(rows * (weight / seconds)[:, None], weight))

    def base(batch: float) -> float:
        later = math.fsum(rise * max(0.0, batch - kink) for rise, kink in zip(rises, KINKS, strict=True))
        return max(1e-9, fixed + slope * batch + later)

    knots = tuple((batch, base(batch)) for batch in (1.0, *map(float, KINKS), float(LARGEST)))
    return LatencyModel(knots, context, 0.0, prompt, 0.0)


def _step(one: SpeedSample) -> list[float]:
    """What a step's seconds are linear in."""
    return [1.0, one.batch, one.context, *(max(0.0, one.batch - kink) for kink in KINKS)]


def slowdown(latency: LatencyModel, speeds: Sequence[Speed]) -> float:
    """How many times longer than by the law these decode steps took; 1 for none. Those beside lent machines are left
    out: they were of batches that no round without loans has, for which the law is a guess."""
    seen = [one for speed in speeds for one in speed.decode if not one.lent]
    expected = math.fsum(one.steps * latency.step(round(one.batch), one.context) for one in seen)
    return math.fsum(one.seconds for one in seen) / expected if expected > 0 else 1.0
