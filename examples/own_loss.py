"""A loss and an advantage of one's own: see own-loss.yaml."""

from __future__ import annotations

import statistics

import torch

from rljob_runtime.training.algorithm.advantage import ScoredGroup
from rljob_runtime.training.algorithm.loss import LossInput, LossOutput
from rljob_runtime.training.config import TrainingConfig

SHARPNESS = 4.0


def soft_gate(batch: LossInput, config: TrainingConfig) -> LossOutput:
    """Weigh each token by a smooth gate of its probability ratio, in place of a clip.

    Sums only: the trainer adds the sums of all machines and divides once.
    """
    ratio = (batch.logprobs - batch.behaviour).exp()
    gate = torch.sigmoid(SHARPNESS * (ratio - 1)) * 4 / SHARPNESS
    loss = -(batch.weights * gate * batch.advantages).sum()
    surprise = -batch.per_response(batch.logprobs.detach())
    return LossOutput(
        loss,
        {
            "gate": gate.detach().sum(),  # divided by the number of tokens
            "response_surprise": (surprise.sum(), batch.sequences),  # a pair is divided by its own count
        },
    )


def above_the_median(group: ScoredGroup) -> list[float]:
    """Compare each reward with the median of its group."""
    middle = statistics.median(group.rewards)
    return [reward - middle for reward in group.rewards]
