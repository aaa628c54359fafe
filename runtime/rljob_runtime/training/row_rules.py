"""Row rules: the settings that lay out the responses of a step in rows."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.spec.algorithm import AdvantageBaseline


@dataclass(frozen=True)
class AdvantageRules:
    """Settings by which the rewards of a group become advantages, and which responses enter the loss.

    `limit` is the length of the longest response, in tokens. `function` is the user's module:function, which runs in
    the trainer and never in the process that plans the rows.
    """

    by_std: bool = True
    baseline: AdvantageBaseline = AdvantageBaseline.GROUP_MEAN
    limit: int = 1
    mask_overlong: bool = False
    overlong_penalty_tokens: int | None = None
    function: str | None = None


@dataclass(frozen=True)
class RowRules:
    """Settings of the row planner.

    `budget` is the number of input tokens in a row. `minibatches` is the number of updates in a step; each has its own
    rows.
    """

    budget: int
    minibatches: int = 1
    advantages: AdvantageRules = AdvantageRules()
