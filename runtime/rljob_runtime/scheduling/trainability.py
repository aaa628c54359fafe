"""Trainability: when a job fails because its groups cannot be trained on, and why. Both modes use this rule."""

from __future__ import annotations

from collections.abc import Collection

from rljob_api.status import Finished, FinishedOutcome
from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, EQUAL_REWARDS


def untrainable_end(reasons: Collection[str], permitted: int = 0) -> Finished | None:
    """Return the job's failure after more than `permitted` consecutive untrainable groups; None before.

    `reasons`: why each of them was filtered. The most frequent reason names the failure.

    >>> untrainable_end(["EqualRewards", "EqualRewards", "RewardFailed"], permitted=2).reason
    'NothingToLearn'
    >>> untrainable_end(["EqualRewards"], permitted=1) is None
    True
    """
    count = len(reasons)
    if count <= permitted:
        return None
    equal, environments = (sum(one == reason for one in reasons) for reason in (EQUAL_REWARDS, ENVIRONMENT_FAILED))
    if equal > count // 2:
        reason = "NothingToLearn"
        why = (
            "the rewards of each group's responses were equal. The task is too hard or too easy for the model, or the "
            "reward is constant"
        )
    elif 2 * environments > count - equal:
        reason, why = "EnvironmentsKeepFailing", "their environments kept failing. See the logs of the runners"
    else:
        reason, why = "RewardsKeepFailing", "their rewards kept failing. See the log for the errors"
    return Finished(
        outcome=FinishedOutcome.FAILED,
        reason=reason,
        message=f"{count} consecutive groups could not be trained on: {why}.",
    )
