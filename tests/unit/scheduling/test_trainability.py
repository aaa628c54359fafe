"""Which groups cannot be trained on, and when a job fails for it."""

from __future__ import annotations

import pytest

from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, EQUAL_REWARDS, REWARD_FAILED
from rljob_runtime.scheduling.round_samples import Sample
from rljob_runtime.scheduling.trainability import untrainable_end, untrainable_reason

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


def response(reward: float | None, failures: int = 0, failure: str = FAILED) -> Sample:
    return Sample(reward=reward, failures=failures, failure=failure)


@pytest.mark.parametrize(
    ("responses", "drop_equal", "reason"),
    [
        pytest.param([response(1.0), response(0.0)], True, None, id="rewards differ"),
        pytest.param([response(1.0), response(1.0)], True, EQUAL, id="rewards are equal"),
        pytest.param([response(1.0), response(1.0)], False, None, id="equal rewards are trained on"),
        pytest.param([response(1.0), response(None)], True, None, id="a reward is expected"),
        pytest.param([response(None), response(None)], True, None, id="all rewards are expected"),
        pytest.param([response(1.0), response(0.0, failures=2)], True, None, id="as many failures as are permitted"),
        pytest.param([response(1.0), response(None, 3, BROKEN)], False, BROKEN, id="one failure more"),
        pytest.param([response(1.0, 3), response(1.0)], True, FAILED, id="a failure goes before equal rewards"),
        pytest.param([response(None, 3, BROKEN), response(None, 3)], True, BROKEN, id="the first failure is told"),
    ],
)
def test_a_group_is_filtered_by_its_failures_and_rewards(responses, drop_equal, reason):
    assert untrainable_reason(responses, max_failures=2, drop_equal=drop_equal) == reason
