from __future__ import annotations

import pytest

from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, REWARD_FAILED


@pytest.mark.parametrize(
    ("failure", "uses"),
    [
        pytest.param(RewardFailure(), 1, id="a failure like any other"),
        pytest.param(RewardFailure(counts=False), 0, id="one that does not count"),
        pytest.param(RewardFailure(by_response=True), 4, id="one of the text: no try is left"),
    ],
)
def test_how_many_of_three_failures_it_is(failure: RewardFailure, uses: int) -> None:
    assert failure.failures(3) == uses


@pytest.mark.parametrize(("reason", "aborted"), [(ENVIRONMENT_FAILED, True), (REWARD_FAILED, False)])
def test_only_a_failed_environment_needs_another_response(reason: str, aborted: bool) -> None:
    assert RewardFailure(reason).aborted is aborted
