"""Losses and advantages as a user may write them, right and wrong."""

from __future__ import annotations

import math

import torch

from rljob_runtime.training.algorithm.advantage import ScoredGroup
from rljob_runtime.training.algorithm.loss import LossInput, LossOutput, Metric, policy_loss
from rljob_runtime.training.config import TrainingConfig

LONGEST = 5


def counted(batch: LossInput, config: TrainingConfig) -> LossOutput:
    """The built-in loss, with metrics over tokens and over responses."""
    lengths = batch.per_response(torch.ones_like(batch.logprobs))
    metrics: dict[str, Metric] = {
        "surprise": -batch.logprobs.detach().sum(),
        "long": (float((lengths > LONGEST).sum()), batch.sequences),
    }
    return LossOutput(policy_loss(batch, config).sum, metrics)


def sum_of(batch: LossInput) -> torch.Tensor:
    return (batch.weights * batch.logprobs).sum()


def raising(batch: LossInput, config: TrainingConfig) -> LossOutput:
    raise ZeroDivisionError("no token is long enough")


def a_tensor(batch: LossInput, config: TrainingConfig) -> torch.Tensor:
    return sum_of(batch)


def a_float(batch: LossInput, config: TrainingConfig) -> LossOutput:
    return LossOutput(0.5)  # type: ignore[arg-type]


def a_value_per_token(batch: LossInput, config: TrainingConfig) -> LossOutput:
    return LossOutput(batch.weights * batch.logprobs)


def without_gradient(batch: LossInput, config: TrainingConfig) -> LossOutput:
    return LossOutput(sum_of(batch).detach())


def nan(batch: LossInput, config: TrainingConfig) -> LossOutput:
    return LossOutput(sum_of(batch) * math.nan)


def metric_per_token(batch: LossInput, config: TrainingConfig) -> LossOutput:
    return LossOutput(sum_of(batch), {"each": batch.advantages})


def infinite_metric(batch: LossInput, config: TrainingConfig) -> LossOutput:
    return LossOutput(sum_of(batch), {"ratio": (1.0, math.inf)})


def metric_with_a_path(batch: LossInput, config: TrainingConfig) -> LossOutput:
    return LossOutput(sum_of(batch), {"../escape": 1.0})


def many_metrics(batch: LossInput, config: TrainingConfig) -> LossOutput:
    return LossOutput(sum_of(batch), {f"m{i}": 1.0 for i in range(100)})


def longer_is_better(group: ScoredGroup) -> list[float]:
    return [length - sum(group.lengths) / len(group.lengths) for length in group.lengths]


def too_few(group: ScoredGroup) -> list[float]:
    return [1.0]


def no_number(group: ScoredGroup) -> list[str]:
    return ["high" for _ in group.rewards]


def infinite(group: ScoredGroup) -> list[float]:
    return [math.inf for _ in group.rewards]


def missing_attribute(group: ScoredGroup) -> list[float]:
    return group.values  # type: ignore[attr-defined, no-any-return]
