"""A distribution of positive numbers as a few quantiles, and the counts of turns.

Between two quantiles the logarithm is linear in the normal score, so two quantiles are a lognormal, more bend it, and
two close together are a jump (responses that run to the cap). A copula needs no more than `at`: it makes normal scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from statistics import NormalDist
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

Floats = npt.NDArray[np.float64]
STANDARD_NORMAL = NormalDist()
_JUMP = 1e-6
"""Probability over which a jump is drawn: a law has one value at each point."""


QUANTILES = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    *(0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995),
)
"""Where a fitted law has its knots, as far as the sample reaches."""


class Law(BaseModel):
    """`values[i]` is the quantile at probability `at[i]`; beyond the first and the last, the law ends there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1)]
    values: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]

    @model_validator(mode="after")
    def _quantiles(self) -> Self:
        if len(self.at) != len(self.values):
            raise ValueError(f"{len(self.at)} probabilities for {len(self.values)} values; as many would be right")
        if any(right <= left for left, right in zip(self.at, self.at[1:], strict=False)):
            raise ValueError("the probabilities in at do not rise")
        if any(right < left for left, right in zip(self.values, self.values[1:], strict=False)):
            raise ValueError("the values fall: quantiles rise with their probability")
        return self

    @classmethod
    def lognormal(cls, median: float, sigma: float) -> Law:
        """Cut off at four standard deviations."""
        at = (STANDARD_NORMAL.cdf(-4), STANDARD_NORMAL.cdf(4))
        return cls(at=at, values=(median * float(np.exp(-4 * sigma)), median * float(np.exp(4 * sigma))))

    @classmethod
    def from_cdf(cls, cdf: Callable[[float], float], low: float, high: float) -> Law:
        """The law of a distribution function, given that a value is above `low`; what lies above `high` is at it."""
        under = cdf(low)
        jump = (cdf(high) - under) / (1 - under)
        ends_before = jump > 1 - _JUMP
        at = [q for q in QUANTILES if q < jump - _JUMP] + ([] if ends_before else [jump - _JUMP])
        values = [_root(lambda value, q=q: (cdf(value) - under) / (1 - under) - q, low, high) for q in at]  # type: ignore[misc]
        if not ends_before:
            at, values = [*at, jump], [*values, high]
        return cls(at=tuple(at), values=tuple(values))

    @cached_property
    def _scores(self) -> Floats:
        return np.array([STANDARD_NORMAL.inv_cdf(at) for at in self.at])

    @cached_property
    def _logs(self) -> Floats:
        logs: Floats = np.log(np.array(self.values))
        return logs

    def at_score(self, scores: Floats) -> Floats:
        """The quantile of each normal score (0 is the median)."""
        values: Floats = np.exp(np.interp(scores, self._scores, self._logs))
        return values

    def draw(self, random: np.random.Generator, size: int) -> Floats:
        return self.at_score(random.standard_normal(size))


class TurnCounts(BaseModel):
    """How often a response has 1, 2, 3, … turns: weights that sum to anything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: Annotated[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _some(self) -> Self:
        if sum(self.weights) <= 0:
            raise ValueError("all weights are 0; one above would be right")
        return self

    @cached_property
    def _upper_scores(self) -> Floats:
        shares = np.cumsum(self.weights) / sum(self.weights)
        inside = np.clip(shares[:-1], 1e-12, 1 - 1e-12)
        return np.array([STANDARD_NORMAL.inv_cdf(float(share)) for share in inside])

    def at_score(self, scores: Floats) -> npt.NDArray[np.int64]:
        """The number of turns at each normal score."""
        return np.searchsorted(self._upper_scores, scores, side="right") + 1


def fit_law(sample: Floats) -> Law:
    """The law of a sample of positive numbers: its quantiles, its ends, and a jump where its largest value repeats.

    A largest value that repeats is a cap that responses run into; interpolation would smear it over the gap below.
    """
    ordered = np.sort(np.asarray(sample, dtype=np.float64))
    size = len(ordered)
    if not size or ordered[0] <= 0:
        raise ValueError("a law is fitted to positive numbers; there are none, or others")
    end = max(0.5 / size, 1e-5)
    inside = [end, *(at for at in QUANTILES if end < at < 1 - end), 1 - end]
    knots = {at: float(np.quantile(ordered, at, method="hazen")) for at in inside}
    below = int(np.searchsorted(ordered, ordered[-1], side="left"))
    if 0 < below < size - 1:
        jump = below / size
        knots = {at: value for at, value in knots.items() if at < jump - end}
        knots |= {jump - end: float(ordered[below - 1]), jump: float(ordered[-1])}
    rounded = {float(f"{at:.6g}"): float(f"{value:.6g}") for at, value in sorted(knots.items())}
    return Law(at=tuple(rounded), values=tuple(rounded.values()))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function of a positive number crosses 0, by halving in the logarithm."""
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return math.sqrt(low * high)
