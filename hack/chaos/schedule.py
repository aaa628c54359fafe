"""Schedule: which faults, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from .observation import Observation
from .rows import ROWS


def schedule(rows: Sequence[str], count: int, seed: int) -> list[str]:
    """Return `count` faults, all rows about equally often.

    The same seed gives the same faults. A row rarely follows itself. Raises `ValueError` for no rows or a negative
    count.
    """
    if not rows or count < 0:
        raise ValueError(f"{count} faults of {len(rows)} rows: there must be a row, and no negative count")
    rng = Random(seed)
    order: list[str] = []
    while len(order) < count:
        turn = rng.sample(list(rows), len(rows))
        if order and len(turn) > 1 and turn[0] == order[-1]:
            turn[0], turn[-1] = turn[-1], turn[0]
        order += turn
    return order[:count]


def first_possible(due: Sequence[str], seen: Observation) -> str:
    """Return the first of these rows that has a possible victim; the first of all if none has.

    If all machines have moved to one node, a row that needs two nodes must wait until others have spread them.
    """
    return next((name for name in due if ROWS[name].victims(seen, Random(0))), due[0])
