"""Observed speed: fits the latency model of engines without a profile to the job's own rounds.

A polled engine reports what its steps computed and took. Those between two polls are a `SpeedSample`; steps in which
prompts were computed are a sample of their own.
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
"""Batch sizes at which the slope may rise; the roofline's ridge is near one of them."""
LARGEST = 4 * KINKS[-1]


@dataclass(frozen=True)
class SpeedSample:
    """Consecutive decode steps.

    `batch`: running sequences; `context`: tokens in the KV cache, in all; both are means over the steps. `seconds`: of
    all steps, and of the prefill of `prompt_tokens`. `lent`: whether other machines of the round were on loan, so that
    the engines had their work too. `profiled`: whether they are of a profile and of no round. `prompt_squares`: Σ(L² −
    L0²) of the prefill."""

    steps: float
    batch: float
    context: float
    seconds: float
    prompt_tokens: int = 0
    lent: bool = False
    profiled: bool = False
    prompt_squares: int = 0

    @classmethod
    def joined(cls, samples: Sequence[SpeedSample]) -> SpeedSample:
        """Merge samples of one bin. Raises `ZeroDivisionError` without a sample."""
        steps = math.fsum(one.steps for one in samples)
        batch = math.fsum(one.steps * one.batch for one in samples) / steps
        context = math.fsum(one.steps * one.context for one in samples) / steps
        prompts, seconds = sum(one.prompt_tokens for one in samples), math.fsum(one.seconds for one in samples)
        squares = sum(one.prompt_squares for one in samples)
        return cls(steps, batch, context, seconds, prompts, samples[0].lent, samples[0].profiled, squares)

    @property
    def bin(self) -> tuple[bool, int, int, bool, bool]:
        """Bin of samples with similar batch and context, within factors of √2."""
        mean = max(1.0, self.context / max(1.0, self.batch))
        sizes = round(2 * math.log2(max(1.0, self.batch))), round(2 * math.log2(mean))
        return bool(self.prompt_tokens), *sizes, self.lent, self.profiled


@dataclass(frozen=True)
class Speed:
    """Observed speed of a round's engines.

    `kv_tokens` and `max_running`: per engine, 0 if unknown. `square_tokens`: see `ModelShape`; 0 if unknown."""

    replicas: int = 0
    kv_tokens: int = 0
    max_running: int = 0
    stretches: tuple[SpeedSample, ...] = ()
    square_tokens: float = 0.0

    @property
    def decode(self) -> tuple[SpeedSample, ...]:
        """Samples without prefill."""
        return tuple(one for one in self.stretches if not one.prompt_tokens)

    @property
    def decode_without_loans(self) -> tuple[SpeedSample, ...]:
        """Return the decode samples of the round itself that were taken while no machine was on loan."""
        return tuple(one for one in self.decode if not one.lent and not one.profiled)

    def to_json(self) -> str:
        """Serialise for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Speed:
        """Parse the output of `to_json`."""
        told: dict[str, Any] = json.loads(text)
        return cls(**{**told, "stretches": tuple(SpeedSample(**one) for one in told["stretches"])})


def binned(samples: Iterable[SpeedSample]) -> tuple[SpeedSample, ...]:
    """Merge similar samples: a few dozen per round."""
    bins: dict[tuple[bool, int, int, bool, bool], list[SpeedSample]] = {}
    for one in samples:
        bins.setdefault(one.bin, []).append(one)
    return tuple(SpeedSample.joined(bins[key]) for key in sorted(bins))


ROUNDS_KEPT = 4
"""Number of earlier rounds whose samples a fit considers."""


def newest_speeds(past: tuple[Speed, ...], speed: Speed) -> tuple[Speed, ...]:
    """Return the speeds of the earlier rounds that a fit considers, now that the round of `speed` is one of them.

    A round without a sample displaces none."""
    return (*past, speed)[-ROUNDS_KEPT:] if speed.stretches else past


DISPLACED = 2.0
"""Factor between batches within which a sample of a round displaces one of a profile."""


def undisplaced(samples: Iterable[SpeedSample]) -> list[SpeedSample]:
    """Return the samples without those of profiles that rounds have replaced.

    A round's own engines are the truth. It displaces a profile only near its own batches: the tail of a stage says
    nothing of large ones.

    >>> profiled = [SpeedSample(8, batch, 0, 1.0, profiled=True) for batch in (1, 4, 16)]
    >>> [one.batch for one in undisplaced([*profiled, SpeedSample(100, 3, 0, 9.0)])]
    [1, 16, 3]
    """
    samples = list(samples)
    own = [one for one in samples if not one.profiled]

    def is_displaced(by: SpeedSample, one: SpeedSample) -> bool:
        near = max(by.batch, one.batch) <= DISPLACED * min(by.batch, one.batch)
        return near and bool(by.prompt_tokens) == bool(one.prompt_tokens)

    return [one for one in samples if not one.profiled or not any(is_displaced(by, one) for by in own)]


def fit_latency(speeds: Sequence[Speed]) -> LatencyModel | None:
    """Fit by least squares of relative errors, weighted by duration, with non-negative coefficients.

    A prefill takes as long per squared token as the model's shape says (`square_tokens`): short prompts do not show it,
    and a long context that is computed again does. Samples of profiles count where no round has others. None without a
    sample."""
    seen = undisplaced(one for speed in speeds for one in speed.stretches)
    if not seen:
        return None
    square = square_tokens(speeds)
    if any(one.prompt_squares for one in seen):
        seen = [one for one in seen if one.prompt_squares or not one.prompt_tokens]
    else:
        # An earlier version stored no squares: the seconds of a token have them.
        square = 0.0
    rows = np.array(
        [
            [*(one.steps * value for value in _step(one)), one.prompt_tokens + square * one.prompt_squares]
            for one in seen
        ]
    )
    seconds: Floats = np.array([one.seconds for one in seen])
    weight: Floats = np.sqrt(seconds)
    fixed, slope, context, *rises, prompt = map(float, nonnegative(rows * (weight / seconds)[:, None], weight))

    def base(batch: float) -> float:
        later = math.fsum(rise * max(0.0, batch - kink) for rise, kink in zip(rises, KINKS, strict=True))
        return max(1e-9, fixed + slope * batch + later)

    knots = tuple((batch, base(batch)) for batch in (1.0, *map(float, KINKS), float(LARGEST)))
    return LatencyModel(knots, context, 0.0, prompt, square * prompt)


def square_tokens(speeds: Sequence[Speed]) -> float:
    """Return the newest known `square_tokens` of these engines; 0 if none is known."""
    return next((speed.square_tokens for speed in reversed(speeds) if speed.square_tokens), 0.0)


def _step(one: SpeedSample) -> list[float]:
    """Return the terms in which a step's seconds are linear."""
    return [1.0, one.batch, one.context, *(max(0.0, one.batch - kink) for kink in KINKS)]


def slowdown(latency: LatencyModel, speeds: Sequence[Speed]) -> float:
    """Return the ratio of measured to predicted seconds of these decode steps; 1 without any.

    Samples during loans are excluded: rounds without loans have no such batches, so the prediction is uncertain there.
    """
    seen = [one for speed in speeds for one in speed.decode_without_loans]
    expected = math.fsum(one.steps * latency.step(round(one.batch), one.context) for one in seen)
    return math.fsum(one.seconds for one in seen) / expected if expected > 0 else 1.0
