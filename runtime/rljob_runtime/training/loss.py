"""The GRPO objective as a raw sum over tokens, and the figures that go with it.

Nothing here divides by a batch size. A token's weight is 1 (token mean) or 1 / (length of its response) (sequence
mean), the sums of any parts of a batch add up to the batch's, and whoever holds all of them divides once by
`Sums.normaliser`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.training.config import Aggregation, TrainingConfig

LOG_RATIO_BOUND = 20.0
"""Log ratios are held inside +-20 before `exp`: beyond it fp32 overflows, and clipping has long made the value moot."""


@dataclass(frozen=True)
class Sums:
    """Raw sums over loss tokens. Adding two parts of a batch gives the sums of both together."""

    loss: float = 0.0
    mismatch_kl: float = 0.0
    """KL of the sampler's distribution to the trainer's, by the k3 estimator on the sampler's own tokens."""
    reference_kl: float = 0.0
    clipped: float = 0.0
    """Tokens whose gradient the clip has cut."""
    entropy: float = 0.0
    tokens: int = 0
    sequences: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums.of([mine + theirs for mine, theirs in zip(self.values(), other.values(), strict=True)])

    def values(self) -> list[float]:
        """Fields in order, for adding and for reducing over ranks."""
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    @classmethod
    def of(cls, values: list[float]) -> Sums:
        """The inverse of `values`."""
        loss, mismatch_kl, reference_kl, clipped, entropy, tokens, sequences = values
        return cls(loss, mismatch_kl, reference_kl, clipped, entropy, int(tokens), int(sequences))

    def normaliser(self, aggregation: Aggregation) -> int:
        """What the raw gradient is divided by, once, when all of the batch is in."""
        return self.tokens if aggregation is Aggregation.TOKEN_MEAN else self.sequences


def log_ratio(new: Tensor, old: Tensor) -> Tensor:
    """`new - old`, bounded so that its exponential is finite."""
    return (new - old).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def k3(log_ratio: Tensor) -> Tensor:
    """Estimator of KL(p || q) for samples of p, with `log_ratio = log q - log p`: unbiased, never negative."""
    return log_ratio.exp() - 1 - log_ratio


def policy_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    weights: Tensor,
    config: TrainingConfig,
    *,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
    sequences: int = 0,
) -> tuple[Tensor, Sums]:
    """The raw loss of some tokens (a scalar that carries the gradient), and their sums.

    All tensors are one-dimensional, one value a loss token. `behaviour` are the sampler's own logprobs at its
    temperature, `logprobs` the trainer's at the same temperature; `reference` those of the frozen model when the KL
    term is on.
    """
    drift = log_ratio(logprobs, behaviour)
    ratio = drift.exp()
    held = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    objective = torch.minimum(ratio * advantages, held * advantages)
    reference_kl = torch.zeros_like(logprobs)
    if reference is not None:
        reference_kl = k3(log_ratio(reference, logprobs))
    loss = (weights * (config.kl_coefficient * reference_kl - objective)).sum()
    with torch.no_grad():
        cut = held * advantages < ratio * advantages
        figures = (loss, k3(drift).sum(), reference_kl.sum(), cut.sum())
        loss_sum, mismatch, reference_sum, clipped = (float(figure) for figure in figures)
    return loss, Sums(
        loss=loss_sum,
        mismatch_kl=mismatch,
        reference_kl=reference_sum,
        clipped=clipped,
        entropy=0.0 if entropy is None else float(entropy.sum()),
        tokens=logprobs.numel(),
        sequences=sequences,
    )
