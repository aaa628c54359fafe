"""Pods that somebody else asks to go: who hands over, for how long, and who takes the place."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from operator_kit import NOW, make_job
from test_operator_plan import Cluster, asynchronous

from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.policies import departing
from rljob_operator.policies.config import Config
from rljob_operator.policies.observed import Node
from rljob_operator.policies.placement import NewPod, Removal
from rljob_operator.policies.pods import DRAIN, render_pod


def working(job: RLJob) -> Cluster:
    cluster = Cluster(job)
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    return cluster


def delete(cluster: Cluster, machine: str, seconds: float = 75.0, **changes: Any) -> str:
    """`kubectl drain` evicts the machine's pod: its name."""
    name = next(p.name for p in cluster.pods.values() if p.machine == machine and p.live)
    deletion = cluster.now + timedelta(seconds=seconds)
    cluster.pods[name] = replace(cluster.pods[name], deleting=True, deletion=deletion, **changes)
    return name


def machines(cluster: Cluster) -> tuple[str, ...]:
    assert cluster.status.target is not None
    return cluster.status.target.machines


def members(cluster: Cluster) -> set[tuple[str, int]]:
    return {(m.machine, m.incarnation) for m in cluster.status.members if m.role is Role.ROLLOUT}


def test_a_machine_of_a_drained_node_hands_over_while_another_one_comes() -> None:
    cluster = working(asynchronous(rollout={"machines": 2}))
    before = cluster.status.target
    name = delete(cluster, "rollout-0")
    decided = cluster.decide()
    assert decided.losses == ()
    assert [event.reason for event in decided.events if event.reason.startswith("Machine")] == ["MachineMoved"]
    cluster.settle()
    assert before is not None
    assert cluster.status.target is not None
    assert cluster.status.target.revision == before.revision + 1
    assert machines(cluster) == ("rollout-1", "rollout-2")
    assert members(cluster) == {("rollout-0", 1), ("rollout-1", 1), ("rollout-2", 1)}
    assert cluster.status.relay is not None
    assert cluster.status.relay.chain == ("rollout-1",)
    assert cluster.decide().empty
    cluster.start_all()
    cluster.settle()
    assert machines(cluster) == ("rollout-1", "rollout-2"), "the name of a pod that is still there is not taken"
    del cluster.pods[name]
    cluster.settle()
    assert members(cluster) == {("rollout-1", 1), ("rollout-2", 1)}
    assert cluster.status.replacements is not None
    assert cluster.status.replacements.total == 0, "it was not lost"
    assert cluster.status.replacements.by_machine == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 0.0},  # its time is over
        {"phase": "Failed"},
        {"phase": "Pending"},
    ],
)
def test_who_cannot_hand_over_is_replaced_at_once(changes: dict[str, Any]) -> None:
    cluster = working(asynchronous(rollout={"machines": 2}))
    delete(cluster, "rollout-0", **changes)
    cluster.settle()
    assert machines(cluster) == ("rollout-0", "rollout-1")
    assert members(cluster) == {("rollout-0", 2), ("rollout-1", 1)}


def test_a_machine_on_a_dead_node_hands_over_nothing() -> None:
    """The node controller deletes its pod: nobody there hears of it."""
    cluster = working(asynchronous(rollout={"machines": 3}))
    cluster.nodes["n"] = Node("n", ready=False)
    delete(cluster, "rollout-0", node="n")
    cluster.settle()
    assert members(cluster) == {("rollout-0", 2), ("rollout-1", 1), ("rollout-2", 1)}


def test_in_a_round_a_machine_keeps_its_name() -> None:
    cluster = working(make_job(rollout={"machines": 2}))
    delete(cluster, "rollout-0")
    cluster.settle()
    assert members(cluster) == {("rollout-0", 2), ("rollout-1", 1)}


def test_its_time_ends_without_an_event() -> None:
    cluster = working(asynchronous(rollout={"machines": 2}))
    delete(cluster, "rollout-0", 20.0)
    assert cluster.decide().again_seconds == 20.0
    cluster.settle()
    cluster.now += timedelta(seconds=20)
    cluster.settle()
    assert members(cluster) == {("rollout-1", 1), ("rollout-2", 1)}


@pytest.mark.parametrize(("user", "seconds"), [({}, 45), ({"terminationGracePeriodSeconds": 7}, 7)])
def test_an_asynchronous_rollout_pod_waits_until_it_is_empty(user: dict[str, Any], seconds: int) -> None:
    job = asynchronous(rollout={"template": {"spec": user}}, runPolicy={"drainSeconds": 30})
    spec = render_pod(job, NewPod("rollout-0", Role.ROLLOUT, 1), 1, Config())["spec"]
    assert spec["containers"][0]["lifecycle"] == {"preStop": {"exec": {"command": list(DRAIN)}}}
    assert spec["terminationGracePeriodSeconds"] == seconds
    trainer = render_pod(job, NewPod("trainer-0", Role.TRAINER, 1), 1, Config())["spec"]
    plain = render_pod(make_job(), NewPod("rollout-0", Role.ROLLOUT, 1), 1, Config())["spec"]
    for other in (trainer, plain):
        assert "lifecycle" not in other["containers"][0]
        assert other["terminationGracePeriodSeconds"] == 30


@pytest.mark.parametrize(
    ("container", "hook"),
    [({"command": ["mine"]}, None), ({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, "sleep"), ({}, "exec")],
)
def test_a_hook_of_the_users_stays(container: dict[str, Any], hook: str | None) -> None:
    template = {"spec": {"containers": [{"name": "main", **container}]}}
    job = asynchronous(rollout={"template": template})
    found = render_pod(job, NewPod("rollout-0", Role.ROLLOUT, 1), 1, Config())["spec"]["containers"][0]
    assert list(found.get("lifecycle", {}).get("preStop", {})) == ([] if hook is None else [hook])


def test_what_the_operator_deletes_hands_over_nothing_and_ends_soon() -> None:
    job = asynchronous(rollout={"machines": 2})
    cluster = working(job)
    cluster.report(finished={"outcome": "Complete"})
    graces = {removal.pod.role: removal.grace_seconds for removal in cluster.decide().removals}
    assert graces == {Role.COORDINATOR: None, Role.TRAINER: None, Role.ROLLOUT: departing.END_SECONDS}
    pod = cluster.pods["demo-rollout-0-1"]
    assert departing.briefly(Removal(pod, "NodeFenced", 0), job.spec).force
    assert departing.briefly(Removal(pod, "JobEnded"), make_job().spec).grace_seconds is None
    own = asynchronous(rollout={"template": {"spec": {"terminationGracePeriodSeconds": 1}}}).spec
    assert departing.briefly(Removal(pod, "JobEnded"), own).grace_seconds is None
    assert cluster.now == NOW
