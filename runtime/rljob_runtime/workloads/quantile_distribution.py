"""Quantile distribution: a distribution of positive numbers as a few quantiles, and the numbers of turns.

Between two quantiles the logarithm is linear in the normal score: two quantiles are a lognormal, more bend it, and two
close ones are a jump (responses at the cap). A copula needs only `at`: it generates normal scores.
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
"""Probability range of a jump: a distribution has one value at each point."""


QUANTILES = (
    *(0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    *(0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995),
)
"""Knots of a fitted distribution, as far as the sample reaches."""


class Distribution(BaseModel):
    """A distribution. `values[i]` is the quantile at probability `at[i]`; it ends at the first and the last."""

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
    def lognormal(cls, median: float, sigma: float) -> Distribution:
        """Return a lognormal, cut at four standard deviations."""
        at = (STANDARD_NORMAL.cdf(-4), STANDARD_NORMAL.cdf(4))
        return cls(at=at, values=(median * float(np.exp(-4 * sigma)), median * float(np.exp(4 * sigma))))

    @classmethod
    def from_cdf(cls, cdf: Callable[[float], float], low: float, high: float) -> Distribution:
        """Return the distribution of `cdf`, given a value above `low`; values above `high` become `high`."""
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
        """Return the quantile of each normal score (0 is the median)."""
        values: Floats = np.exp(np.interp(scores, self._scores, self._logs))
        return values

    def draw(self, random: np.random.Generator, size: int) -> Floats:
        return self.at_score(random.standard_normal(size))


class TurnCounts(BaseModel):
    """How often a response has 1, 2, 3, … turns, as weights of any sum."""

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
        """Return the number of turns at each normal score."""
        return np.searchsorted(self._upper_scores, scores, side="right") + 1


def fit_distribution(sample: Floats) -> Distribution:
    """Fit a sample of positive numbers: its quantiles, its ends, and a jump if its largest value repeats.

    A repeated largest value is a cap; interpolation would smear it over the gap below."""
    ordered = np.sort(np.asarray(sample, dtype=np.float64))
    size = len(ordered)
    if not size or ordered[0] <= 0:
        raise ValueError("a distribution is fitted to positive numbers; there are none, or others")
    end = max(0.5 / size, 1e-5)
    inside = [end, *(at for at in QUANTILES if end < at < 1 - end), 1 - end]
    knots = {at: float(np.quantile(ordered, at, method="hazen")) for at in inside}
    below = int(np.searchsorted(ordered, ordered[-1], side="left"))
    if 0 < below < size - 1:
        jump = below / size
        knots = {at: value for at, value in knots.items() if at < jump - end}
        knots |= {jump - end: float(ordered[below - 1]), jump: float(ordered[-1])}
    rounded = {float(f"{at:.6g}"): float(f"{value:.6g}") for at, value in sorted(knots.items())}
    return Distribution(at=tuple(rounded), values=tuple(rounded.values()))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Find where a rising function of a positive number crosses 0, by bisection of the logarithm."""
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return math.sqrt(low * high)
