"""Trainability: which groups cannot be trained on, and when a job fails for it. Both modes use these rules."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from rljob_api.status import Finished, FinishedOutcome
from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, EQUAL_REWARDS


class Judged(Protocol):
    """A response of a group: how often its reward failed, why it did last, and its reward, if it has one."""

    failures: int
    failure: str
    reward: float | None


def untrainable_reason(responses: Collection[Judged], max_failures: int, drop_equal: bool = False) -> str | None:
    """Return why a group of these responses is filtered; None if it is trained on, or may be.

    `drop_equal`: whether equal rewards filter it. Responses that are expected may have another reward."""
    for one in responses:
        if one.failures > max_failures:
            return one.failure
    rewards = {one.reward for one in responses}
    return EQUAL_REWARDS if drop_equal and len(rewards) == 1 and None not in rewards else None


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
