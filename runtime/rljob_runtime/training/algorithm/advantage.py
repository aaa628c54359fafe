"""Group-normalised advantages (GRPO): a response is as good as it beats its siblings.

Only the group's own rewards are used, so an advantage is final as soon as its group is complete: nothing here waits for
the rest of the batch, which is what lets gradients be computed while generation goes on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

EPSILON = 1e-6
"""Added to the standard deviation: bounds the advantages of a group whose rewards differ by rounding only."""
_LARGE_EXPONENT = 400
"""Of two: numbers up to here have squares and sums that are floats."""


def group_advantages(rewards: Sequence[float], *, by_std: bool = True) -> list[float]:
    """`(reward - mean) / (std + EPSILON)` for each response of one group, or `reward - mean` with `by_std=False`.

    `std` is the population's. Equal rewards (and a group of one) teach nothing: exactly zero. Raises `ValueError` for
    an empty group and for a reward that is not finite.
    """
    if not rewards:
        raise ValueError("a group needs at least one reward")
    for position, reward in enumerate(rewards):
        if not math.isfinite(reward):
            raise ValueError(f"rewards[{position}] is {reward}: a reward is a finite number")
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    # Squares and sums of very large rewards would leave the range of floats: those are divided by a power of two first.
    exponent = max(0, math.frexp(max(map(abs, rewards)))[1] - _LARGE_EXPONENT)
    scaled = [math.ldexp(reward, -exponent) for reward in rewards]
    mean = math.fsum(scaled) / len(scaled)
    centred = [reward - mean for reward in scaled]
    if not by_std:
        return [_finite(c, exponent) for c in centred]
    std = math.sqrt(math.fsum(c * c for c in centred) / len(centred))
    return [c / (std + math.ldexp(EPSILON, -exponent)) for c in centred]


def _finite(value: float, exponent: int) -> float:
    """`value` times a power of two; the largest float where that has none."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(sys.float_info.max, value)
