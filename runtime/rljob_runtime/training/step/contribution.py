"""Gradient contributions: raw sums that any worker computes, in any split and order.

A contribution is one worker's result for some groups of a step: the raw gradient in fp32 and its loss sums.
Contributions add up. `normalise` divides once by the global count, when all contributions are combined. So trainer
ranks and loaned machines agree on the weights only (RollPacker §4.4). The count of a token-mean loss is loss tokens,
not samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from rljob_api.spec.algorithm import LossAggregation
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.training.algorithm.sums import LossSums


@dataclass(frozen=True)
class Contribution:
    """The raw gradient of some groups of one step.

    `gradients` maps parameter names to fp32 sums; sharded ones stay sharded. A contribution is accepted completely and
    once: `combine` refuses the same group twice and contributions of different steps.
    """

    step: int
    worker: str
    term: int
    groups: frozenset[PromptKey]
    gradients: Mapping[str, Tensor]
    sums: LossSums


def take_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Move the accumulated gradients out of the model, without a copy.

    Every trainable parameter takes part in a forward pass. A parameter without a gradient would be a silent loss, so it
    raises `ValueError`.
    """
    gradients: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise ValueError(f"parameter {name} got no gradient")
        gradients[name] = parameter.grad
        parameter.grad = None
    return gradients


def combine(contributions: Iterable[Contribution]) -> Contribution:
    """Add contributions.

    The gradients of the first are modified in place. Raises `ValueError` for no contribution, for different steps or
    parameters, and for a group that occurs twice.
    """
    parts = list(contributions)
    if not parts:
        raise ValueError("no contribution to combine")
    first, *others = parts
    groups, sums = set(first.groups), first.sums
    for other in others:
        if other.step != first.step:
            raise ValueError(f"contribution of {other.worker} is of step {other.step}; this is step {first.step}")
        if twice := groups & other.groups:
            raise ValueError(f"group {min(twice)} was contributed twice, the second time by {other.worker}")
        if other.gradients.keys() != first.gradients.keys():
            raise ValueError(f"contribution of {other.worker} has other parameters than that of {first.worker}")
        for name, gradient in first.gradients.items():
            gradient.add_(other.gradients[name])
        groups |= other.groups
        sums = sums + other.sums
    return Contribution(first.step, first.worker, first.term, frozenset(groups), first.gradients, sums)


def normalise(total: Contribution, aggregation: LossAggregation) -> Mapping[str, Tensor]:
    """Divide the raw sums, in place and once, by the count of all combined tokens or responses.

    The result is the gradient of the mean loss.
    """
    count = total.sums.normaliser(aggregation)
    if not total.groups:
        raise ValueError("nothing to train on: no group in any contribution")
    if not count:  # all responses are masked, so the sums are zeros
        return total.gradients
    for gradient in total.gradients.values():
        gradient.div_(count)
    return total.gradients
