"""Fitting: a latency model from a profile, by bounded least squares of relative errors.

Outliers have a low weight: a shared machine has pauses that outlast all repeats of a load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.perf_model.engine_records import Request
from rljob_runtime.perf_model.engine_simulator import EngineSimulator
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.least_squares import Floats, nonnegative
from rljob_runtime.perf_model.profile import Profile, ProfiledRound, ProfileError, Sample

DOUBTFUL = 2.0
"""Multiple of the usual error above which a sample counts linearly instead of quadratically (Huber)."""
REWEIGHINGS = 5
CERTAIN = 1e-9
"""A usual error below this is arithmetic: all samples are right."""


@dataclass(frozen=True)
class PredictionError:
    """Error of a model relative to measurements."""

    mean: float
    worst: float
    worst_sample: Sample

    def __str__(self) -> str:
        at = self.worst_sample
        return f"{self.mean:.1%} on average, {self.worst:.1%} at batch {at.batch} and context {at.context}"


@dataclass(frozen=True)
class Fit:
    """The model of one layout, its KV cache, and its error on its own samples."""

    latency: LatencyModel
    kv_tokens: int
    decode: PredictionError
    prefill: PredictionError


def fit(profile: Profile, tensor_parallel: int) -> Fit:
    """Fit the model of one layout. A step of 2 ms counts as much as one of 200 ms.

    `base` has a knot at each measured batch size and never falls with the batch; every other coefficient is at least
    zero. Raises `ProfileError` if the samples do not determine the model."""
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
    """Predict the seconds of a round with the model and the engine simulator."""
    engine = EngineSimulator(latency, kv_tokens, max_sequences=len(profiled.lengths))
    engine.submit(
        0.0, [Request(number, profiled.prompt_tokens, tokens) for number, tokens in enumerate(profiled.lengths)]
    )
    return engine.drain()[-1].time


def round_errors(profile: Profile, fitted: Fit, tensor_parallel: int) -> list[float]:
    """Return predicted over measured seconds, minus 1, of each measured round of this layout."""
    profiled = [one for one in profile.rounds if one.tensor_parallel == tensor_parallel]
    return [predict_round(fitted.latency, fitted.kv_tokens, one) / one.seconds - 1 for one in profiled]


def decode_error(latency: LatencyModel, samples: Sequence[Sample]) -> PredictionError:
    """Return the model's error on decode steps; on other samples than its own, this is its prediction error."""
    return _error(samples, lambda one: latency.step(one.batch, one.batch * one.context))


def prefill_error(latency: LatencyModel, samples: Sequence[Sample]) -> PredictionError:
    """Return the model's error on prefill passes."""
    return _error(samples, lambda one: latency.prefill(one.batch * one.context, one.batch * one.context**2))


def _decode(samples: Sequence[Sample]) -> tuple[tuple[tuple[float, float], ...], float]:
    """Fit knots and c. The unknowns are the first knot, the rise to each further one, and c."""
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
    """Minimise the relative error: every row is divided by its seconds."""
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
    """Return the layout's samples. Raises `ProfileError` unless they span both directions."""
    chosen = [sample for sample in samples if sample.tensor_parallel == tensor_parallel]
    for field in ("batch", "context"):
        values = sorted({getattr(sample, field) for sample in chosen})
        if len(values) < 2:
            raise ProfileError(
                f"profile.{name}: {field} {values} with tensor parallel size {tensor_parallel}; "
                "at least two values would be right"
            )
    return chosen
