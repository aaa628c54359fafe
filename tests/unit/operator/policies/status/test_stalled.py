"""Which observations stall a job, and with which reason."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.observation import Observed, Pod
from rljob_operator.policies.status.stalled import find_stall_reason
from tests.support.operator.harness import NOW
from tests.support.operator.observed_pods import running_pod


@pytest.mark.parametrize(
    ("pod", "blocked", "reason"),
    [
        (running_pod(), [], None),
        (running_pod(phase="Pending", waiting=ConditionReason("ErrImagePull", "no such image")), [], "ImagePullFailed"),
        (
            running_pod(phase="Pending", waiting=ConditionReason("CreateContainerConfigError", "no secret")),
            [],
            "ContainerConfigError",
        ),
        (running_pod(phase="Pending", unschedulable="0/3 nodes", created=NOW), [], None),  # a moment's patience
        (
            running_pod(phase="Pending", unschedulable="0/3 nodes", created=NOW - timedelta(minutes=1)),
            [],
            "Unschedulable",
        ),
        (running_pod(), ["rollout-1"], "ReplacementBudgetExhausted"),
    ],
)
def test_what_stalls_a_job(pod: Pod, blocked: list[str], reason: str | None) -> None:
    found = find_stall_reason(Observed((pod,)), blocked, bool(blocked), Config(), NOW)
    assert (found.reason if found is not None else None) == reason
