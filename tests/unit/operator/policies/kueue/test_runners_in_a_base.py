"""Runners and the base: where they are placed, when the base counts as ready, and when its quota is returned."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_operator.policies.base.kueue_objects import runner_set
from rljob_operator.policies.base.runners import RunnerPod
from rljob_operator.policies.base.single_episode_pods import START_SECONDS
from tests.support.operator.environment_jobs import CALC, SHELL, calc, with_environments
from tests.support.operator.plan_queue import Queued

BASE = "demo-base"


def admitted(*environments: dict[str, Any], **changes: Any) -> Queued:
    """A job whose base is admitted and whose pods all run."""
    cluster = Queued(with_environments(*(environments or (CALC, SHELL)), **changes))
    cluster.settle()
    cluster.admit_all()
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    return cluster


def test_a_job_that_waits_for_quota_has_no_runners() -> None:
    cluster = Queued(with_environments(CALC, SHELL))
    cluster.settle()
    assert cluster.applied == []
    assert [one.runners for one in cluster.status.environments] == [0, 0]
    cluster.admit_all()
    cluster.settle()
    assert cluster.applied == [("calc", 2), ("shell", 1)]


def test_runners_are_placed_where_their_flavor_is() -> None:
    cluster = Queued(with_environments(calc(template={"spec": {"nodeSelector": {"disk": "ssd"}}})))
    cluster.settle()
    cluster.admit_all()
    (deployment,) = cluster.decide().deployments
    template = deployment["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"disk": "ssd", "topology.kubernetes.io/zone": "zone-1"}
    keys = [one["key"] for one in template["spec"]["tolerations"]]
    assert keys == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "spot"]
    assert template["metadata"]["labels"]["rljob.dev/environment"] == "calc"
    cluster.settle()
    assert not cluster.decide().deployments, "the assignment is a part of the shape"


def test_a_node_selector_that_contradicts_the_flavor_stalls_the_job() -> None:
    elsewhere = {"spec": {"nodeSelector": {"topology.kubernetes.io/zone": "zone-2"}}}
    cluster = admitted(SHELL, calc(template=elsewhere))
    assert cluster.reason("Stalled") == "True/FlavorMismatch"
    stalled = cluster.status.condition("Stalled")
    assert stalled is not None
    assert "spec.environments[1].template.spec.nodeSelector says zone-2" in stalled.message
    assert cluster.applied == []


def test_the_base_is_ready_with_its_runners() -> None:
    """Kueue takes the quota of a Workload whose pods are not ready for long."""
    cluster = admitted()
    assert cluster.parsed(BASE).holds("PodsReady")
    cluster.runners["calc"] = replace(cluster.runners["calc"], ready=1)
    cluster.settle()
    assert not cluster.parsed(BASE).holds("PodsReady")
    cluster.run_runners()
    cluster.settle()
    assert cluster.parsed(BASE).holds("PodsReady")


def test_the_base_stays_ready_while_pods_of_one_episode_are_replaced() -> None:
    cluster = admitted({**SHELL, "reset": "Pod", "episodesPerRunner": 1})
    used, new = RunnerPod("a", "uid-a", cluster.now, used=True), RunnerPod("b", "uid-b", cluster.now)
    for pods in ((used,), (replace(used, deleting=True), new), (new,)):
        cluster.runners["shell"] = replace(cluster.runners["shell"], ready=0, single_episode_pods=pods)
        cluster.settle()
        assert cluster.parsed(BASE).holds("PodsReady")
    cluster.now += timedelta(seconds=START_SECONDS)
    cluster.settle()
    assert not cluster.parsed(BASE).holds("PodsReady")


def test_quota_is_returned_when_the_runners_are_gone_too() -> None:
    cluster = admitted(checkpoint={"volumeClaimName": "state"})
    cluster.evict(BASE)
    cluster.settle()
    target = cluster.status.target
    assert target is not None
    cluster.report(event=1, applied=target.revision, stage="Suspended")
    cluster.settle()
    cluster.bury()
    cluster.settle()
    assert cluster.pods == {}
    assert cluster.applied[2:] == [("calc", 0), ("shell", 0)]
    assert cluster.parsed(BASE).reserved, "three runners still end"
    cluster.runners = {name: replace(one, pods=0) for name, one in cluster.runners.items()}
    cluster.settle()
    assert cluster.parsed(BASE).reserved, "their controller may still create one"
    cluster.run_runners()
    cluster.settle()
    assert not cluster.parsed(BASE).reserved
    cluster.admit(BASE)
    cluster.settle()
    assert cluster.applied[4:] == [("calc", 2), ("shell", 1)]


def test_the_base_is_finished_when_the_runners_are_gone_too() -> None:
    cluster = admitted()
    cluster.report(event=1, finished={"outcome": "Complete"})
    cluster.settle()
    cluster.bury()
    cluster.settle()
    assert not cluster.parsed(BASE).holds("Finished")
    cluster.run_runners()
    cluster.settle()
    assert cluster.parsed(BASE).holds("Finished")


@pytest.mark.parametrize("name", ["calc", "x" * 51, "x" * 52, "x" * 63])
def test_a_pod_set_has_a_name_that_kueue_accepts_and_no_other_environment(name: str) -> None:
    assert len(runner_set(name)) <= 63
    assert runner_set(name).startswith("environment-")
    assert runner_set(name) != runner_set(f"{name[:-1]}y")
