"""Weight load: how long newer weights wait for the open turns of a replica.

A turn has one version. So a load waits for the open turns to end, or it interrupts them, and newer weights generate
them again from their beginning. No turn begins on the replica while the load waits. Waiting costs the seconds of the
turns that cannot begin, and interruption costs the seconds that the open turns have had. The load waits until the first
cost reaches the second, so that it never pays more than about twice the smaller one (the rent-or-buy rule).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

MOST_SECONDS = 30.0
"""Longest wait for turns that may be interrupted: a replica that waits draws no prompts."""
LEAST_SECONDS = 0.01
"""A shorter wait is none."""


@dataclass(frozen=True)
class RunningTurn:
    """An open turn: the seconds since it was submitted, and whether newer weights have interrupted it before."""

    seconds: float
    interrupted: bool = False


def seconds_to_wait(running: Sequence[RunningTurn], waiting: Sequence[float], waited: float) -> float:
    """Return how long a load still waits for the open turns; 0: it interrupts them now.

    `waiting`: seconds that each turn has waited for the load. `waited`: seconds of the load itself. A turn is
    interrupted once: a turn that takes longer than an update would never end otherwise.

    >>> [seconds_to_wait([RunningTurn(2.0)], [waited, waited], waited) for waited in (0.5, 1.0)]
    [1.0, 0.0]
    """
    if not running:
        return 0.0
    if any(one.interrupted for one in running):
        return inf
    gap = sum(one.seconds for one in running) - sum(waiting)
    # Each second adds one of each open turn and one of each that waits.
    closing = len(waiting) - len(running)
    balanced = 0.0 if gap <= 0 else gap / closing if closing > 0 else inf
    left = min(balanced, MOST_SECONDS - waited)
    return left if left >= LEAST_SECONDS else 0.0
