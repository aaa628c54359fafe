"""The GRPO objective as a raw sum over tokens, and the figures that go with it.

Nothing here divides by a batch size. A token's weight is 1 (token mean) or 1 / (length of its response) (sequence
mean), the sums of any parts of a batch add up to the batch's, and whoever holds all of them divides once by
`Sums.normaliser`.
"""

from __future__ import annotations

import dataclasses
import math
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
    importance: float = 0.0
    """Importance ratios, before the cap."""
    importance_squares: float = 0.0
    capped: float = 0.0
    """Tokens whose importance ratio the cap has cut."""
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
        loss, mismatch_kl, reference_kl, clipped, entropy, importance, squares, capped, tokens, sequences = values
        figures = (loss, mismatch_kl, reference_kl, clipped, entropy, importance, squares, capped)
        return cls(*figures, int(tokens), int(sequences))

    def normaliser(self, aggregation: Aggregation) -> int:
        """What the raw gradient is divided by, once, when all of the batch is in."""
        return self.tokens if aggregation is Aggregation.TOKEN_MEAN else self.sequences

    @property
    def effective_sample_size(self) -> float:
        """(sum of r)^2 / (n x sum of r^2) of the importance ratios: 1 when all are equal, 1 / n when one outweighs the
        rest."""
        return self.importance**2 / (self.tokens * self.importance_squares) if self.importance_squares else 1.0


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
    proximal: Tensor | None = None,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
    sequences: int = 0,
) -> tuple[Tensor, Sums]:
    """The raw loss of some tokens (a scalar that carries the gradient), and their sums.

    All tensors are one-dimensional, one value a loss token. `behaviour` are the sampler's own logprobs at its
    temperature, `logprobs` the trainer's at the same temperature, `proximal` the trainer's at the start of the step
    (None: `logprobs` are those); `reference` those of the frozen model when the KL term is on.

    Without a cap the clipped ratio is that to the sampler. With one the two things that it stands for are apart
    (decoupled PPO, Hilton et al. 2021): how far the sampler is from the start of the step is a constant weight,
    min(proximal / behaviour, cap), and what is clipped is how far this step's updates have gone from its start.
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
        figures = (loss, k3(drift).sum(), reference_kl.sum(), cut.sum())
        loss_sum, mismatch, reference_sum, clipped = (float(figure) for figure in figures)
        raw = importance.double()  # the square of the largest is beyond what fp32 can add to
    return loss, Sums(
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
