"""Loss sums: what a part of a batch adds to the loss and its metrics, undivided.

Sums of any parts of a batch add up to the sums of the batch. The caller that combines all parts divides once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rljob_api.spec.algorithm import LossAggregation


class MetricSum(NamedTuple):
    """A metric of the loss as a raw sum and its divisor, a raw count."""

    total: float
    divisor: float

    def plus(self, other: MetricSum) -> MetricSum:
        """Return the sum of both parts."""
        return MetricSum(self.total + other.total, self.divisor + other.divisor)

    @property
    def mean(self) -> float:
        """Return the metric; 0 where nothing was counted."""
        return self.total / self.divisor if self.divisor else 0.0


@dataclass(frozen=True)
class LossSums:
    """Raw sums over loss tokens.

    The sum of two parts of a batch equals the sums of both parts together.
    """

    loss: float = 0.0
    mismatch_kl: float = 0.0
    """KL divergence of the sampler's distribution from the trainer's: k3 estimator on the sampled tokens."""
    reference_kl: float = 0.0
    """KL divergence from the initial model: k3 estimator on the sampled tokens."""
    entropy: float = 0.0
    importance: float = 0.0
    """Importance ratios before the cap."""
    importance_squares: float = 0.0
    capped: float = 0.0
    """Tokens whose importance ratio the cap cuts."""
    tokens: int = 0
    sequences: int = 0
    metrics: Mapping[str, MetricSum] = field(default_factory=dict)
    """Metrics of the loss function, by name."""

    def __add__(self, other: LossSums) -> LossSums:
        mine, theirs = self.to_dict(), other.to_dict()
        own, others = mine.pop("metrics"), theirs.pop("metrics")
        metrics = {name: _NONE.plus(own.get(name, _NONE)).plus(others.get(name, _NONE)) for name in {**own, **others}}
        return LossSums(**{name: value + theirs[name] for name, value in mine.items()}, metrics=metrics)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, to send them: numbers, and the metrics as a mapping of pairs."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> LossSums:
        """Build the sums from `to_dict`, or from its JSON."""
        metrics = {name: MetricSum(*pair) for name, pair in fields["metrics"].items()}
        return cls(**{**fields, "metrics": metrics})

    def normaliser(self, aggregation: LossAggregation) -> int:
        """Return the divisor of the raw gradient of a complete batch."""
        return self.tokens if aggregation is LossAggregation.TOKEN_MEAN else self.sequences

    @property
    def effective_sample_size(self) -> float:
        """Effective sample size of the importance ratios r: (sum of r)² / (n × sum of r²).

        It is 1 when all ratios are equal and 1 / n when one ratio outweighs the rest.
        """
        return self.importance**2 / (self.tokens * self.importance_squares) if self.importance_squares else 1.0

    def metric(self, name: str) -> float:
        """Return the mean of a metric of the loss; 0 for a loss that has no such metric."""
        return self.metrics.get(name, _NONE).mean

    def means(self) -> dict[str, float]:
        """Return the metrics of the loss, divided by their counts."""
        return {name: metric.mean for name, metric in self.metrics.items()}


_NONE = MetricSum(0.0, 0.0)
