"""Policy loss: the objective of an algorithm as a raw sum over tokens.

Nothing here divides by a batch size. A token's weight is 1, 1 / (length of its response) or 1 / (a fixed length). The
caller that combines all parts of a batch divides once by `LossSums.normaliser`. A loss function of the user has the
same signature as `policy_loss`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rljob_api.spec.algorithm import ImportanceRatio, KLPlacement
from rljob_runtime.training.algorithm.parts import bounded, k3, mean_of_response, objective, per_response
from rljob_runtime.training.algorithm.parts import rest_of_response as rest
from rljob_runtime.training.algorithm.sums import LossSums, MetricSum
from rljob_runtime.training.config import TrainingConfig

Metric = Tensor | float | tuple[Tensor | float, Tensor | float]
"""A raw sum over tokens, which is divided by the number of tokens, or a pair of raw sums: (sum, count)."""


@dataclass(frozen=True)
class LossInput:
    """The loss tokens of some complete responses.

    All tensors are one-dimensional, with one value for each of N loss tokens. Only `logprobs` carries a gradient, and
    `entropy` where the loss uses it. The tokens of a response are contiguous and in order.
    """

    logprobs: Tensor
    """The trainer's log-probability of each token, at the sampling temperature."""
    behaviour: Tensor
    """The sampler's."""
    proximal: Tensor
    """The trainer's at the start of the step; equal to `logprobs` in the step's first update."""
    reference: Tensor | None
    """The initial model's. None unless klCoefficient is above 0."""
    entropy: Tensor
    """Entropy of the distribution that the token was drawn from."""
    advantages: Tensor
    weights: Tensor
    """Weight of each token in the sum, by lossAggregation."""
    responses: Tensor
    """Index of the token's response, from 0."""
    sequences: int
    """Number of responses."""

    def per_response(self, values: Tensor) -> Tensor:
        """Sum one value a token over each response: [N] to [sequences]."""
        return per_response(values, self.responses, self.sequences)


@dataclass(frozen=True)
class LossOutput:
    """The raw loss of some tokens.

    `sum` is a scalar that carries the gradient: a sum over tokens or responses, not a mean. `metrics` holds raw sums.
    """

    sum: Tensor
    metrics: Mapping[str, Metric] = field(default_factory=dict)


Loss = Callable[[LossInput, TrainingConfig], LossOutput]


def policy_loss(batch: LossInput, config: TrainingConfig) -> LossOutput:
    """Compute the raw loss of the algorithm's parts.

    Without a cap, the clipped ratio is trainer over sampler. With a cap, that ratio splits in two (decoupled PPO,
    Hilton et al. 2021). The constant weight min(proximal / behaviour, cap) corrects for the sampler. The clipped ratio
    measures how far the updates of this step have moved from its start.
    """
    logprobs, advantages = batch.logprobs, batch.advantages
    if config.importance_cap is None:
        weight, moved = torch.ones_like(logprobs), logprobs - batch.behaviour
    else:
        weight = bounded(batch.proximal - batch.behaviour).exp().clamp(max=config.importance_cap)
        moved = logprobs - batch.proximal
    if config.importance_ratio is ImportanceRatio.SEQUENCE:
        moved = mean_of_response(moved, batch.responses, batch.sequences)
    loss = -config.entropy_coefficient * batch.entropy if config.entropy_coefficient else torch.zeros_like(logprobs)
    if batch.reference is not None and config.kl_placement is KLPlacement.LOSS:
        loss = loss + config.kl_coefficient * k3(bounded(batch.reference - logprobs))
    elif batch.reference is not None:
        price = rest(batch.proximal - batch.reference, batch.responses, batch.sequences)
        advantages = advantages - config.kl_coefficient * price
    ratio = bounded(moved).exp()
    value, low, high = objective(config.clipping, ratio, logprobs, advantages, config.clip_low, config.clip_high)
    total = (batch.weights * (loss - weight * value)).sum()
    return LossOutput(total, {"clip_fraction_low": low.sum(), "clip_fraction_high": high.sum()})


@torch.no_grad()
def sums_of(batch: LossInput, output: LossOutput, cap: float | None) -> LossSums:
    """Return the sums of a batch: of its loss, and of what every loss reports."""
    drift = bounded(batch.proximal - batch.behaviour)
    raw = drift.exp().double()  # fp32 cannot hold the square of the largest ratio
    tokens = batch.logprobs.numel()
    reference = 0.0 if batch.reference is None else float(k3(bounded(batch.reference - batch.logprobs)).sum())
    return LossSums(
        loss=float(output.sum),
        mismatch_kl=float(k3(drift).sum()),
        reference_kl=reference,
        entropy=float(batch.entropy.sum()),
        importance=float(raw.sum()),
        importance_squares=float(raw.square().sum()),
        capped=float((raw > (cap or math.inf)).sum()),
        tokens=tokens,
        sequences=batch.sequences,
        metrics={name: _metric(value, tokens) for name, value in output.metrics.items()},
    )


def _metric(value: Metric, tokens: int) -> MetricSum:
    total, count = value if isinstance(value, tuple) else (value, tokens)
    return MetricSum(float(total), float(count))
