"""Parts of a policy loss: ratios, objectives and divergences, each a pure function of tensors.

All tensors are one-dimensional, with one value for each loss token. `responses` holds the index of a token's response.
The tokens of a response are contiguous and in order, and a batch holds all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rljob_api.spec.algorithm import Clipping

LOG_RATIO_BOUND = 20.0
"""Log ratios are clamped to ±20 before `exp`. Larger ones overflow fp32, and the clip makes their value irrelevant."""


def bounded(log_ratio: Tensor) -> Tensor:
    """Return a log ratio, clamped so that its exponential is finite."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def per_response(values: Tensor, responses: Tensor, sequences: int) -> Tensor:
    """Sum the values of each response: [N] to [sequences]."""
    return values.new_zeros(sequences).index_add(0, responses, values)


def mean_of_response(values: Tensor, responses: Tensor, sequences: int) -> Tensor:
    """Return for each token the mean over its response: [N] to [N]."""
    lengths = per_response(torch.ones_like(values), responses, sequences)
    return (per_response(values, responses, sequences) / lengths)[responses]


def rest_of_response(values: Tensor, responses: Tensor, sequences: int) -> Tensor:
    """Return for each token the sum from it to the end of its response: [N] to [N]."""
    wide = values.double()
    ends = per_response(wide, responses, sequences).cumsum(0)
    return (ends[responses] - wide.cumsum(0) + wide).to(values.dtype)


def k3(log_ratio: Tensor) -> Tensor:
    """Estimate KL(p || q) on samples of p, with `log_ratio = log q - log p`.

    The estimator is unbiased and never negative.
    """
    return log_ratio.exp() - 1 - log_ratio


class Objective(NamedTuple):
    """The objective of each token, and where the clip acts: below and above."""

    value: Tensor
    cut_low: Tensor
    cut_high: Tensor


def clipped_objective(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Objective:
    """Compute PPO's objective: the minimum of the plain and the clipped one.

    A token beyond the clip in the direction of its advantage has no gradient.
    """
    held = ratio.clamp(1 - low, 1 + high)
    cut = held * advantages < ratio * advantages
    return Objective(torch.minimum(ratio * advantages, held * advantages), cut & (ratio < held), cut & (ratio > held))


def weighted_objective(ratio: Tensor, logprobs: Tensor, advantages: Tensor, low: float, high: float) -> Objective:
    """Compute CISPO's objective: the clipped ratio is a constant weight of the log-probability.

    Every token keeps its gradient.
    """
    weight = ratio.detach()
    held = weight.clamp(1 - low, 1 + high)
    return Objective(held * advantages * logprobs, weight < held, weight > held)


def objective(
    clipping: Clipping, ratio: Tensor, logprobs: Tensor, advantages: Tensor, low: float, high: float
) -> Objective:
    """Compute the objective of this kind of clipping."""
    if clipping is Clipping.WEIGHT:
        return weighted_objective(ratio, logprobs, advantages, low, high)
    return clipped_objective(ratio, advantages, low, high)
