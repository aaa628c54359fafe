"""Row rules: the settings by which the responses of a step are laid out in rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowRules:
    """`budget`: input tokens of a row. `minibatches`: updates of a step, each with rows of its own. `by_std`: whether
    advantages are divided by the standard deviation of their group."""

    budget: int
    minibatches: int = 1
    by_std: bool = True
