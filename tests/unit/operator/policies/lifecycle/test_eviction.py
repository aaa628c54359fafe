"""Pods that another client deletes: who hands over, for how long, and who takes the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod, Removal
from rljob_operator.policies.base.observation import Node, Silence, parse_node
from rljob_operator.policies.lifecycle import eviction
from rljob_operator.policies.pods.manifests import DRAIN, render_pod
from tests.support.operator.harness import NOW, make_job
from tests.support.operator.plan_cluster import Cluster, asynchronous

CLAIM = {"volumeClaimName": "state"}


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
def test_who_cannot_hand_over_is_replaced_immediately(changes: dict[str, Any]) -> None:
    cluster = working(asynchronous(rollout={"machines": 2}))
    delete(cluster, "rollout-0", **changes)
    cluster.settle()
    assert machines(cluster) == ("rollout-0", "rollout-1")
    assert members(cluster) == {("rollout-0", 2), ("rollout-1", 1)}


def test_a_machine_on_a_dead_node_hands_over_nothing() -> None:
    """The node controller deletes its pod: no process there learns of it."""
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
    plain = render_pod(make_job(), NewPod("rollout-0", Role.ROLLOUT, 1), 1, Config())["spec"]
    assert "lifecycle" not in plain["containers"][0]
    assert plain["terminationGracePeriodSeconds"] == 30


@pytest.mark.parametrize(
    ("role", "checkpoint", "seconds", "hooked"),
    [
        (Role.TRAINER, {"volumeClaimName": "state"}, 45, True),
        (Role.TRAINER, {"emptyDir": {}}, 30, False),  # what it saves there dies with the pod
        (Role.COORDINATOR, {"volumeClaimName": "state"}, 45, False),  # it saves on SIGTERM, by itself
        (Role.COORDINATOR, {"emptyDir": {}}, 45, False),  # the trainer has the state, and stays
    ],
)
@pytest.mark.parametrize("make", [make_job, asynchronous])
def test_who_holds_the_state_has_the_time_to_save_it(
    make: Callable[..., RLJob], role: Role, checkpoint: dict[str, Any], seconds: int, hooked: bool
) -> None:
    job = make(checkpoint=checkpoint, runPolicy={"drainSeconds": 30})
    spec = render_pod(job, NewPod(f"{role.lower()}-0", role, 1), 1, Config())["spec"]
    assert spec["terminationGracePeriodSeconds"] == seconds
    assert ("lifecycle" in spec["containers"][0]) == hooked


@pytest.mark.parametrize("make", [make_job, asynchronous])
@pytest.mark.parametrize("machine", ["trainer-0", "coordinator-0"])
def test_who_saves_the_state_keeps_its_place_until_it_has_gone(machine: str, make: Callable[..., RLJob]) -> None:
    cluster = working(make(checkpoint=CLAIM))
    name = delete(cluster, machine)
    decided = cluster.decide()
    assert [event.reason for event in decided.events] == ["MachineLeaving"]
    assert (decided.creations, decided.losses, decided.removals) == ((), (), ())
    assert decided.again_seconds == 75.0
    cluster.settle()
    member = next(member for member in cluster.status.members if member.machine == machine)
    assert (member.incarnation, member.leaving) == (1, True)
    told = cluster.status.condition("Reconciling")
    assert told is not None
    assert (told.reason, machine in told.message) == ("MachineLeaving", True)
    assert cluster.decide().empty
    # As it ends, whatever its exit code is, it has gone.
    cluster.pods[name] = replace(cluster.pods[name], phase="Failed", ready=False)
    cluster.settle()
    assert f"demo-{machine}-2" in cluster.pods
    member = next(member for member in cluster.status.members if member.machine == machine)
    assert (member.incarnation, member.leaving) == (2, None)
    assert cluster.status.replacements is not None
    assert (cluster.status.replacements.total, cluster.status.replacements.by_machine) == (1, {})
    assert cluster.status.replacements.backoff == {}


@pytest.mark.parametrize(
    ("machine", "checkpoint", "changes", "ready"),
    [
        ("trainer-0", {"emptyDir": {}}, {}, True),  # a checkpoint that dies with the pod
        ("trainer-0", {"volumeClaimName": "state"}, {"seconds": 0.0}, True),
        ("trainer-0", {"volumeClaimName": "state"}, {"phase": "Pending"}, True),
        ("trainer-0", {"volumeClaimName": "state"}, {"node": "n"}, False),
        ("coordinator-0", {"volumeClaimName": "state"}, {"seconds": 0.0}, True),
        ("coordinator-0", {"volumeClaimName": "state"}, {"node": "n"}, False),
    ],
)
def test_who_can_save_nothing_is_replaced_immediately(
    machine: str, checkpoint: dict[str, Any], changes: dict[str, Any], ready: bool
) -> None:
    cluster = working(make_job(checkpoint=checkpoint))
    cluster.nodes["n"] = Node("n", ready=ready)
    delete(cluster, machine, **changes)
    cluster.settle()
    assert f"demo-{machine}-2" in cluster.pods


def place(cluster: Cluster, node: Node, *machines: str) -> None:
    """The machines' pods are on this node."""
    cluster.nodes[node.name] = node
    for pod in [pod for pod in cluster.pods.values() if pod.machine in machines]:
        cluster.pods[pod.name] = replace(pod, node=node.name)


SHUTTING_DOWN = Node("n", ready=False, shutting_down=True)


@pytest.mark.parametrize("make", [make_job, asynchronous])
def test_a_trainer_whose_node_shuts_down_saves_its_last_update(make: Callable[..., RLJob]) -> None:
    """The kubelet ends the pod without deleting it. It is no loss before it has ended, and costs no budget then."""
    cluster = working(make(checkpoint=CLAIM, rollout={"machines": 2}))
    place(cluster, SHUTTING_DOWN, "trainer-0", "rollout-1")
    decided = cluster.decide()
    assert [event.reason for event in decided.events] == ["MachineLeaving"]
    assert (decided.creations, decided.losses, decided.removals) == ((), (), ())
    cluster.settle()
    assert [member.machine for member in cluster.status.members if member.leaving] == ["trainer-0"]
    name = "demo-trainer-0-1"
    cluster.pods[name] = replace(cluster.pods[name], phase="Failed", ready=False, disrupted=True)
    cluster.settle()
    assert "demo-trainer-0-2" in cluster.pods
    assert not any(member.leaving for member in cluster.status.members)
    assert cluster.status.replacements is not None
    assert cluster.status.replacements.by_machine == {}


@pytest.mark.parametrize(
    ("node", "checkpoint"),
    [
        (Node("n", ready=False), CLAIM),  # it is dead, or cut off: no process there learns of it
        (Node("n"), CLAIM),
        (SHUTTING_DOWN, {"emptyDir": {}}),  # what it would save ends with its pod
    ],
)
def test_no_other_trainer_is_asked_to_save_for_its_node(node: Node, checkpoint: dict[str, Any]) -> None:
    cluster = working(make_job(checkpoint=checkpoint))
    place(cluster, node, "trainer-0")
    cluster.settle()
    assert not any(member.leaving for member in cluster.status.members)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ({"status": "False", "reason": "KubeletNotReady", "message": "node is shutting down"}, (False, True)),
        ({"status": "False", "message": "[PLEG is not healthy, node is shutting down]"}, (False, True)),
        ({"status": "False", "reason": "KubeletNotReady", "message": "PLEG is not healthy"}, (False, False)),
        ({"status": "Unknown", "message": "node is shutting down"}, (False, False)),  # the kubelet says nothing more
        ({"status": "True", "message": "kubelet is posting ready status"}, (True, False)),
        ({"status": "False"}, (False, False)),
    ],
)
def test_a_node_that_shuts_down_is_told_from_one_that_is_lost(
    condition: dict[str, Any], found: tuple[bool, bool]
) -> None:
    node = parse_node({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", **condition}]}})
    assert (node.ready, node.shutting_down) == found


def test_a_coordinator_that_falls_silent_as_it_leaves_is_not_awaited() -> None:
    cluster = working(make_job(checkpoint=CLAIM))
    cluster.silence = Silence(f"{delete(cluster, 'coordinator-0')}_1", 3.0)
    assert [loss.reason for loss in cluster.decide().losses] == ["CoordinatorSilent"]
    cluster.settle()
    assert "demo-coordinator-0-2" in cluster.pods


def test_a_suspension_waits_for_a_coordinator_that_leaves() -> None:
    """It saves the state, and no other pod goes before that."""
    cluster = working(make_job(checkpoint=CLAIM))
    name = delete(cluster, "coordinator-0")
    cluster.settle()
    spec = cluster.job.spec.model_copy(update={"suspend": True})
    cluster.job = cluster.job.model_copy(update={"spec": spec})
    cluster.settle()
    assert not any(pod.deleting for pod in cluster.pods.values() if pod.name != name)
    del cluster.pods[name]
    cluster.settle()
    assert all(pod.deleting for pod in cluster.pods.values())


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
    soon = eviction.END_SECONDS
    assert graces == {Role.COORDINATOR: soon, Role.TRAINER: None, Role.ROLLOUT: soon}
    trainer = cluster.pods["demo-trainer-0-1"]
    assert (
        eviction.with_short_grace(Removal(trainer, "JobEnded"), make_job(checkpoint=CLAIM).spec).grace_seconds == soon
    )
    pod = cluster.pods["demo-rollout-0-1"]
    assert eviction.with_short_grace(Removal(pod, "NodeFenced", 0), job.spec).force
    assert eviction.with_short_grace(Removal(pod, "JobEnded"), make_job().spec).grace_seconds is None
    own: dict[str, Any] = {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}
    assert eviction.with_short_grace(Removal(pod, "JobEnded"), asynchronous(rollout=own).spec).grace_seconds is None
    spec = make_job(checkpoint=CLAIM, trainer=own).spec
    assert eviction.with_short_grace(Removal(trainer, "JobEnded"), spec).grace_seconds is None
    assert cluster.now == NOW
