"""Row rules: the settings that lay out the responses of a step in rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowRules:
    """Settings of the row planner.

    `budget` is the number of input tokens in a row. `minibatches` is the number of updates in a step; each has its own
    rows. `by_std` divides advantages by the standard deviation of their group.
    """

    budget: int
    minibatches: int = 1
    by_std: bool = True
