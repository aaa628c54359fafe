"""The pods of a job: which of them are removed."""

from __future__ import annotations

from rljob_api.status import Role
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.pods import pod_set
from tests.support.operator.observed_pods import running_pod

PLACED = {"rollout-0": Role.ROLLOUT}


def test_ended_pods_go_but_for_the_last() -> None:
    pods = [running_pod(incarnation=n, phase="Failed") for n in (1, 2)] + [running_pod(incarnation=3)]
    removals = pod_set.to_remove(PLACED, Observed(tuple(pods)), [], [], frozenset())
    assert [(removal.pod.incarnation, removal.reason) for removal in removals] == [(1, "Ended")]
