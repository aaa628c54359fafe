"""Gradient contributions: raw sums that may be computed anywhere, in any split and order.

A contribution is what one worker made of some groups of a step: the unnormalised gradient in fp32 and the sums behind
it. Contributions add up; the one division by the global count happens in `normalise`, when all are in. So trainer
ranks, and later machines that are lent to training, need to agree on nothing but the weights (RollPacker, section
4.4; the count of a token-mean loss is loss tokens, not samples).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.training.algorithm.loss import Sums
from rljob_runtime.training.config import Aggregation


@dataclass(frozen=True)
class Contribution:
    """The raw gradient of some groups of one step. `gradients` maps parameter names to fp32 sums (sharded ones stay
    so).

    Accepted whole and once: `combine` refuses the same group twice and contributions of different steps.
    """

    step: int
    worker: str
    term: int
    groups: frozenset[PromptKey]
    gradients: Mapping[str, Tensor]
    sums: Sums


def take_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Move the accumulated gradients out of the model (no copy). Raises `ValueError` if a parameter got none: every
    trainable parameter takes part in a forward pass, so that would be a silent loss."""
    gradients: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise ValueError(f"parameter {name} got no gradient")
        gradients[name] = parameter.grad
        parameter.grad = None
    return gradients


def combine(contributions: Iterable[Contribution]) -> Contribution:
    """The sum of them all. The gradients of the first are added to in place."""
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


def normalise(total: Contribution, aggregation: Aggregation) -> Mapping[str, Tensor]:
    """The gradient of the mean loss: raw sums divided, in place and once, by the count of everything combined."""
    count = total.sums.normaliser(aggregation)
    if count < 1:
        raise ValueError("nothing to train on: no loss token in any contribution")
    for gradient in total.gradients.values():
        gradient.div_(count)
    return total.gradients
