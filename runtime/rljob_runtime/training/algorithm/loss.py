"""Policy loss: the GRPO objective and its metrics as raw sums over tokens.

Nothing here divides by a batch size. A token's weight is 1 (token mean) or 1 / (length of its response) (sequence
mean). Sums of any parts of a batch add up to the sums of the batch. The caller that combines all parts divides once by
`LossSums.normaliser`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.training.config import Aggregation, TrainingConfig

LOG_RATIO_BOUND = 20.0
"""Log ratios are clamped to ±20 before `exp`. Larger ones overflow fp32, and the clip makes their value irrelevant."""


@dataclass(frozen=True)
class LossSums:
    """Raw sums over loss tokens.

    The sum of two parts of a batch equals the sums of both parts together.
    """

    loss: float = 0.0
    mismatch_kl: float = 0.0
    """KL divergence of the sampler's distribution from the trainer's: k3 estimator on the sampled tokens."""
    reference_kl: float = 0.0
    clipped: float = 0.0
    """Tokens whose gradient the clip cuts."""
    entropy: float = 0.0
    importance: float = 0.0
    """Importance ratios before the cap."""
    importance_squares: float = 0.0
    capped: float = 0.0
    """Tokens whose importance ratio the cap cuts."""
    tokens: int = 0
    sequences: int = 0

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums.of([mine + theirs for mine, theirs in zip(self.values(), other.values(), strict=True)])

    def values(self) -> list[float]:
        """Return the fields in order, to add them and to reduce them over ranks."""
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    @classmethod
    def of(cls, values: list[float]) -> LossSums:
        """Build the sums from `values`."""
        loss, mismatch_kl, reference_kl, clipped, entropy, importance, squares, capped, tokens, sequences = values
        terms = (loss, mismatch_kl, reference_kl, clipped, entropy, importance, squares, capped)
        return cls(*terms, int(tokens), int(sequences))

    def normaliser(self, aggregation: Aggregation) -> int:
        """Return the divisor of the raw gradient of a complete batch."""
        return self.tokens if aggregation is Aggregation.TOKEN_MEAN else self.sequences

    @property
    def effective_sample_size(self) -> float:
        """Effective sample size of the importance ratios r: (sum of r)² / (n × sum of r²).

        It is 1 when all ratios are equal and 1 / n when one ratio outweighs the rest.
        """
        return self.importance**2 / (self.tokens * self.importance_squares) if self.importance_squares else 1.0


def log_ratio(new: Tensor, old: Tensor) -> Tensor:
    """Return `new - old`, clamped so that its exponential is finite."""
    return (new - old).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def k3(log_ratio: Tensor) -> Tensor:
    """Estimate KL(p || q) on samples of p, with `log_ratio = log q - log p`.

    The estimator is unbiased and never negative.
    """
    return log_ratio.exp() - 1 - log_ratio


def policy_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    weights: Tensor,
    config: TrainingConfig,
    *,
    proximal: Tensor | None = None,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
    sequences: int = 0,
) -> tuple[Tensor, LossSums]:
    """Compute the raw loss of some tokens and their sums.

    The loss is a scalar that carries the gradient. All tensors are one-dimensional, with one value per loss token.
    `behaviour` holds the sampler's logprobs at its temperature. `logprobs` holds the trainer's at the same temperature.
    `proximal` holds the trainer's at the start of the step; None means that they equal `logprobs`. `reference` holds
    those of the frozen model when the KL term is on.

    Without a cap, the clipped ratio is trainer over sampler. With a cap, that ratio splits in two (decoupled PPO,
    Hilton et al. 2021). The constant weight min(proximal / behaviour, cap) corrects for the sampler. The clipped ratio
    measures how far the updates of this step have moved from its start.
    """
    start = logprobs.detach() if proximal is None else proximal
    drift = log_ratio(start, behaviour)
    importance = drift.exp()
    if config.importance_cap is None:
        weight, ratio = torch.ones_like(importance), log_ratio(logprobs, behaviour).exp()
    else:
        weight, ratio = importance.clamp(max=config.importance_cap), log_ratio(logprobs, start).exp()
    held = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    objective = weight * torch.minimum(ratio * advantages, held * advantages)
    reference_kl = torch.zeros_like(logprobs)
    if reference is not None:
        reference_kl = k3(log_ratio(reference, logprobs))
    loss = (weights * (config.kl_coefficient * reference_kl - objective)).sum()
    with torch.no_grad():
        cut = held * advantages < ratio * advantages
        terms = (loss, k3(drift).sum(), reference_kl.sum(), cut.sum())
        loss_sum, mismatch, reference_sum, clipped = (float(term) for term in terms)
        raw = importance.double()  # fp32 cannot hold the square of the largest ratio
    return loss, LossSums(
        loss=loss_sum,
        mismatch_kl=mismatch,
        reference_kl=reference_sum,
        clipped=clipped,
        entropy=0.0 if entropy is None else float(entropy.sum()),
        importance=float(raw.sum()),
        importance_squares=float(raw.square().sum()),
        capped=float((raw > (config.importance_cap or math.inf)).sum()),
        tokens=logprobs.numel(),
        sequences=sequences,
    )
