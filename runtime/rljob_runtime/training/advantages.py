"""Group-normalised advantages (GRPO): a response is as good as it beats its siblings.

Only the group's own rewards are used, so an advantage is final as soon as its group is complete: nothing here waits for
the rest of the batch, which is what lets gradients be computed while generation goes on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

EPSILON = 1e-6
"""Added to the standard deviation: bounds the advantages of a group whose rewards differ by rounding only."""


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
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not by_std:
        return centred
    std = math.sqrt(math.fsum(c * c for c in centred) / len(centred))
    return [c / (std + EPSILON) for c in centred]
