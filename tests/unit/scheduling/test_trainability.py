"""When a job fails because its groups cannot be trained on, and why."""

from __future__ import annotations

import pytest

from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, EQUAL_REWARDS, REWARD_FAILED
from rljob_runtime.scheduling.trainability import untrainable_end

EQUAL, FAILED, BROKEN = EQUAL_REWARDS, REWARD_FAILED, ENVIRONMENT_FAILED


@pytest.mark.parametrize(
    ("reasons", "permitted", "reason"),
    [
        pytest.param([], 0, None, id="no group was filtered"),
        pytest.param([EQUAL] * 3, 3, None, id="as many as are permitted"),
        pytest.param([EQUAL] * 4, 3, "NothingToLearn", id="one more than is permitted"),
        pytest.param([FAILED], 0, "RewardsKeepFailing", id="rewards failed"),
        pytest.param([EQUAL, FAILED], 0, "RewardsKeepFailing", id="as many failed as were equal"),
        pytest.param([FAILED, BROKEN], 0, "RewardsKeepFailing", id="as many environments as rewards failed"),
        pytest.param([EQUAL, BROKEN, BROKEN, FAILED], 0, "EnvironmentsKeepFailing", id="more environments failed"),
        pytest.param([EQUAL, EQUAL, FAILED], 0, "NothingToLearn", id="more were equal than failed"),
    ],
)
def test_a_job_fails_by_the_more_frequent_reason(reasons, permitted, reason):
    found = untrainable_end(reasons, permitted)
    assert (found.reason if found else None) == reason
    assert found is None or str(len(reasons)) in found.message
