"""Trainability: when a job fails because its groups cannot be trained on, and why. Both modes use this rule."""

from __future__ import annotations

from collections.abc import Collection

from rljob_api.status import Finished, FinishedOutcome
from rljob_runtime.scheduling.round_plan import EQUAL_REWARDS


def untrainable_end(reasons: Collection[str], permitted: int = 0) -> Finished | None:
    """Return the job's failure after more than `permitted` consecutive untrainable groups; None before.

    `reasons`: why each of them was filtered. The more frequent reason names the failure.

    >>> untrainable_end(["EqualRewards", "EqualRewards", "RewardFailed"], permitted=2).reason
    'NothingToLearn'
    >>> untrainable_end(["EqualRewards"], permitted=1) is None
    True
    """
    count = len(reasons)
    if count <= permitted:
        return None
    if sum(reason == EQUAL_REWARDS for reason in reasons) > count // 2:
        reason = "NothingToLearn"
        why = (
            "the rewards of each group's responses were equal. The task is too hard or too easy for the model, or the "
            "reward is constant"
        )
    else:
        reason, why = "RewardsKeepFailing", "their rewards kept failing. See the log for the errors"
    return Finished(
        outcome=FinishedOutcome.FAILED,
        reason=reason,
        message=f"{count} consecutive groups could not be trained on: {why}.",
    )
