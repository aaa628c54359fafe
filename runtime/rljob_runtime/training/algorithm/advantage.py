"""Group advantages: compares each reward with a baseline of its group.

An advantage depends on its own group only. It is final when the group is complete, so gradients can be computed while
other groups generate.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.spec.algorithm import AdvantageBaseline

EPSILON = 1e-6
"""Added to the standard deviation. It bounds the advantages of a group whose rewards differ by rounding only."""
_LARGE_EXPONENT = 400
"""Exponent of two. Rewards below 2 to this power have squares and sums that floats can hold."""


@dataclass(frozen=True)
class ScoredGroup:
    """The responses to one prompt, in order: what an advantage depends on."""

    rewards: tuple[float, ...]
    """Weighted sums of the rewards, with the penalty of overlong responses."""
    lengths: tuple[int, ...]
    """Tokens of each response."""
    truncated: tuple[bool, ...]
    """Whether a response was cut at the limit."""


def group_advantages(
    rewards: Sequence[float], *, by_std: bool = True, baseline: AdvantageBaseline = AdvantageBaseline.GROUP_MEAN
) -> list[float]:
    """Compute `(reward - baseline) / (std + EPSILON)` for each response of one group.

    The baseline is the mean reward of the group (GroupMean) or of its other responses (LeaveOneOut). With
    `by_std=False` the result is `reward - baseline`. `std` is the population standard deviation. Equal rewards, and a
    group of one, give exactly 0. Raises `ValueError` for an empty group and for a reward that is not finite.
    """
    if not rewards:
        raise ValueError("a group needs at least one reward")
    for position, reward in enumerate(rewards):
        if not math.isfinite(reward):
            raise ValueError(f"rewards[{position}] is {reward}: a reward is a finite number")
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    # Squares and sums of very large rewards overflow. Rewards are divided by a power of two first.
    exponent = max(0, math.frexp(max(map(abs, rewards)))[1] - _LARGE_EXPONENT)
    scaled = [math.ldexp(reward, -exponent) for reward in rewards]
    count = len(scaled)
    mean = math.fsum(scaled) / count
    centred = [reward - mean for reward in scaled]
    # reward - mean of the others = (reward - mean of all) × count / (count - 1)
    factor = count / (count - 1) if baseline is AdvantageBaseline.LEAVE_ONE_OUT else 1.0
    if not by_std:
        return [_finite(c * factor, exponent) for c in centred]
    std = math.sqrt(math.fsum(c * c for c in centred) / count)
    return [c * factor / (std + math.ldexp(EPSILON, -exponent)) for c in centred]


def _finite(value: float, exponent: int) -> float:
    """Return `value` times a power of two, or the largest float on overflow."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(sys.float_info.max, value)
