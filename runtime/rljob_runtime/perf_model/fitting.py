"""From a profile to the latency law: least squares of relative errors, with bounds that keep the law sane. Samples far
off the law of the others weigh little: a shared machine has pauses that outlast all repeats of a load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.perf_model.engine_simulator import EngineSimulator, Request
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.least_squares import Floats, nonnegative
from rljob_runtime.perf_model.profile import Profile, ProfiledRound, ProfileError, Sample

DOUBTFUL = 2.0
"""From so many times the usual error on, a sample counts by its distance and no more by its square (Huber)."""
REWEIGHINGS = 5
CERTAIN = 1e-9
"""A usual error below this is that of arithmetic: all samples are right."""


@dataclass(frozen=True)
class PredictionError:
    """How far a law is from what was measured, relative to that."""

    mean: float
    worst: float
    worst_sample: Sample

    def __str__(self) -> str:
        at = self.worst_sample
        return f"{self.mean:.1%} on average, {self.worst:.1%} at batch {at.batch} and context {at.context}"


@dataclass(frozen=True)
class Fit:
    """The law of one layout, its KV cache, and how well the law fits the samples it came from."""

    latency: LatencyModel
    kv_tokens: int
    decode: PredictionError
    prefill: PredictionError


def fit(profile: Profile, tensor_parallel: int) -> Fit:
    """The law of one layout. A step of 2 ms counts as much as one of 200.

    `base` gets a knot at each batch size measured and never falls as the batch grows; every other coefficient is zero
    or more. Raises `ProfileError` where the samples cannot fix the law.
    """
    if tensor_parallel not in profile.kv_tokens:
        sizes = " and ".join(str(size) for size in profile.tensor_parallel_sizes) or "nothing"
        raise ProfileError(f"profile.kv_tokens: tensor parallel size {tensor_parallel} was not measured; {sizes} was")
    decode = _samples("decode", profile.decode, tensor_parallel)
    prefill = _samples("prefill", profile.prefill, tensor_parallel)
    knots, context_token = _decode(decode)
    latency = LatencyModel(knots, context_token, *_prefill(prefill))
    return Fit(
        latency, profile.kv_tokens[tensor_parallel], decode_error(latency, decode), prefill_error(latency, prefill)
    )


def predict_round(latency: LatencyModel, kv_tokens: int, profiled: ProfiledRound) -> float:
    """Seconds of a round by the law and the event model."""
    engine = EngineSimulator(latency, kv_tokens, max_sequences=len(profiled.lengths))
    engine.submit(
        0.0, [Request(number, profiled.prompt_tokens, tokens) for number, tokens in enumerate(profiled.lengths)]
    )
    return engine.drain()[-1].time


def round_errors(profile: Profile, fitted: Fit, tensor_parallel: int) -> list[float]:
    """Foretold over measured seconds less one, of each round that the profile has of this layout."""
    profiled = [one for one in profile.rounds if one.tensor_parallel == tensor_parallel]
    return [predict_round(fitted.latency, fitted.kv_tokens, one) / one.seconds - 1 for one in profiled]


def decode_error(latency: LatencyModel, samples: Sequence[Sample]) -> PredictionError:
    """Of the law's decode steps; on samples that it was not fitted to, its error of prediction."""
    return _error(samples, lambda one: latency.step(one.batch, one.batch * one.context))


def prefill_error(latency: LatencyModel, samples: Sequence[Sample]) -> PredictionError:
    """Of the law's prefill passes."""
    return _error(samples, lambda one: latency.prefill(one.batch * one.context, one.batch * one.context**2))


def _decode(samples: Sequence[Sample]) -> tuple[tuple[tuple[float, float], ...], float]:
    """Knots and c. The unknowns are the first knot, the rise to each further one, and c."""
    batches = sorted({sample.batch for sample in samples})
    rows = [
        [*(float(sample.batch >= batch) for batch in batches), float(sample.batch * sample.context)]
        for sample in samples
    ]
    *rises, context_token = _solve(rows, samples)
    knots = tuple(zip(map(float, batches), map(float, np.cumsum(rises)), strict=True))
    if knots[0][1] <= 0:
        raise ProfileError(
            f"profile.decode: all the time of a step of batch {batches[0]} goes with its context; samples of shorter "
            "contexts would tell the two apart"
        )
    return knots, context_token


def _prefill(samples: Sequence[Sample]) -> tuple[float, float, float]:
    rows = [[1.0, float(one.batch * one.context), float(one.batch * one.context**2)] for one in samples]
    fixed, token, square = _solve(rows, samples)
    return fixed, token, square


def _solve(rows: Sequence[Sequence[float]], samples: Sequence[Sample]) -> list[float]:
    """Coefficients of least relative error: every row over its seconds, to give one."""
    seconds: Floats = np.array([sample.seconds for sample in samples])
    matrix: Floats = np.array(rows) / seconds[:, None]
    weight: Floats = np.ones(len(samples))
    for _ in range(REWEIGHINGS):
        found = nonnegative(matrix * weight[:, None], weight)
        errors: Floats = np.abs(matrix @ found - 1)
        usual = float(np.median(errors))
        if usual < CERTAIN:
            break
        weight = np.sqrt(np.minimum(1.0, DOUBTFUL * usual / np.maximum(errors, usual)))
    return [float(one) for one in found]


def _error(samples: Sequence[Sample], predict: Callable[[Sample], float]) -> PredictionError:
    errors = [abs(predict(sample) / sample.seconds - 1) for sample in samples]
    worst = max(range(len(errors)), key=errors.__getitem__)
    return PredictionError(math.fsum(errors) / len(errors), errors[worst], samples[worst])


def _samples(name: str, samples: Sequence[Sample], tensor_parallel: int) -> list[Sample]:
    """Those of the layout, if they span both directions."""
    chosen = [sample for sample in samples if sample.tensor_parallel == tensor_parallel]
    for field in ("batch", "context"):
        values = sorted({getattr(sample, field) for sample in chosen})
        if len(values) < 2:
            raise ProfileError(
                f"profile.{name}: {field} {values} with tensor parallel size {tensor_parallel}; "
                "at least two values would be right"
            )
    return chosen
