"""Capacity of a cluster as an upper bound, and a gang that is told to be larger than it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.kueue_objects import Assignment, Flavor, Kueue, Workload
from rljob_operator.policies.base.observation import Node, Observed, Pod, parse_node, parse_pod
from rljob_operator.policies.gang import gang_size
from rljob_operator.policies.kueue import workloads
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.plan import plan
from rljob_operator.policies.pods.capacity import Kind, amounts, fits, kind_of
from tests.support.operator.harness import NOW, make_job

CONFIG = Config()
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


def node(name: str = "n1", *taints: dict[str, str], **offers: str) -> Node:
    labels = {"kubernetes.io/hostname": name, "zone": "east"}
    item = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": list(taints)}}
    return parse_node({**item, "status": {"allocatable": {"pods": "110", "cpu": "4", "memory": "8Gi", **offers}}})


def pod(**more: Any) -> dict[str, Any]:
    """A pod of one processor."""
    return {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}], **more}


def tolerating(**toleration: str) -> dict[str, Any]:
    return pod(tolerations=[toleration])


def limited(**limits: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"limits": limits}}]}


FITS = {
    "as many as there are processors": (pod(), 4, [node()], True),
    "one more": (pod(), 5, [node()], False),
    "on two nodes": (pod(), 8, [node(), node("n2")], True),
    "not across nodes": (pod(containers=[{"resources": {"requests": {"cpu": "3"}}}]), 2, [node()], False),
    "halves that only together are one": (limited(cpu="2500m"), 2, [node(cpu="4"), node("n2", cpu="2")], False),
    "limits count where there are no requests": (limited(memory="3Gi"), 3, [node()], False),
    "an extended resource": (limited(**{"nvidia.com/gpu": "4"}), 2, [node(**{"nvidia.com/gpu": "8"})], True),
    "an extended resource that no node has": (limited(**{"amd.com/gpu": "1"}), 1, [node()], False),
    "places for pods": (pod(containers=[]), 3, [node(pods="2")], False),
    "another zone": (pod(nodeSelector={"zone": "west"}), 1, [node()], False),
    "its zone": (pod(nodeSelector={"zone": "east"}), 1, [node()], True),
    "a taint": (pod(), 1, [node("n1", TAINT)], False),
    "a taint that is tolerated": (tolerating(key="team", operator="Exists"), 1, [node("n1", TAINT)], True),
    "a value that is tolerated": (tolerating(key="team", value="a"), 1, [node("n1", TAINT)], True),
    "another value": (tolerating(key="team", value="b"), 1, [node("n1", TAINT)], False),
    "all taints": (tolerating(operator="Exists"), 1, [node("n1", TAINT)], True),
    "another effect": (tolerating(operator="Exists", effect="NoExecute"), 1, [node("n1", TAINT)], False),
    "a mere preference": (pod(), 1, [node("n1", {**TAINT, "effect": "PreferNoSchedule"})], True),
    "a cordoned node comes back": (
        pod(),
        1,
        [node("n1", {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})],
        True,
    ),
    "a node that is deleted": (pod(), 1, [replace(node(), gone=True)], False),
    "no node": (pod(), 1, [], False),
    "nothing": (pod(), 0, [], True),
}


@pytest.mark.parametrize(("spec", "count", "nodes", "holds"), FITS.values(), ids=FITS)
def test_what_a_cluster_could_hold(spec: dict[str, Any], count: int, nodes: list[Node], holds: bool) -> None:
    assert fits([(kind_of(spec), count)], nodes) is holds


def asking(name: str, cpu: str, **more: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}


ASKS = {
    "containers run together": (pod(containers=[asking("main", "1"), asking("logs", "2")]), 3),
    "init containers run before": (pod(initContainers=[asking("fetch", "5"), asking("unpack", "4")]), 5),
    "a sidecar runs beside them": (pod(initContainers=[asking("head", "2", restartPolicy="Always")]), 3),
    "and beside later init containers": (
        pod(initContainers=[asking("head", "2", restartPolicy="Always"), asking("fetch", "5")]),
        7,
    ),
    "and not beside earlier ones": (
        pod(initContainers=[asking("fetch", "5"), asking("head", "2", restartPolicy="Always")]),
        5,
    ),
}


@pytest.mark.parametrize(("spec", "cpu"), ASKS.values(), ids=ASKS)
def test_what_a_pod_asks_for(spec: dict[str, Any], cpu: int) -> None:
    assert kind_of(spec).asks["cpu"] == cpu


def test_kinds_share_what_there_is() -> None:
    kinds = [(kind_of(pod()), 2), (kind_of(pod(nodeSelector={"zone": "east"})), 2)]
    assert fits(kinds, [node()])
    assert not fits([*kinds, (kind_of(pod()), 1)], [node()])


def test_quantities_are_numbers() -> None:
    quantities = {"cpu": "1500m", "memory": "1.5Gi", "storage": "2k", "big": "1e3", "odd": "many", "e": "2E", "x": "3q"}
    assert amounts(quantities) == {
        "cpu": Decimal("1.5"),
        "memory": Decimal(3 * 2**29),
        "storage": Decimal(2000),
        "big": Decimal(1000),
        "e": Decimal(2 * 10**18),
    }


@given(st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=4))
def test_what_is_placed_fits(placed: list[list[int]]) -> None:
    """Whatever stands on nodes fits on them: the bound says no of nothing that could be."""
    nodes = [node(f"n{number}", cpu=str(sum(pods) + 1)) for number, pods in enumerate(placed)]
    sizes = [size for pods in placed for size in pods]
    wanted = [(Kind({"cpu": Decimal(size), "pods": Decimal(1)}, {}), sizes.count(size)) for size in sorted(set(sizes))]
    assert fits(wanted, nodes)


# --- the gang ---------------------------------------------------------------------------------------------------------


def gang_of(machines: int, **changes: Any) -> RLJob:
    """Each pod asks for one processor."""
    template = {"template": {"spec": pod()}}
    rollout = {"machines": machines, "minMachines": machines, **template}
    spec = {"coordinator": template, "trainer": template, "rollout": rollout, "scheduling": {"gang": "Native"}}
    return make_job(**{**spec, **changes})


def decided(job: RLJob, nodes: tuple[Node, ...] | None, **more: Any) -> Plan:
    """About a job whose pods have waited long."""
    first = plan(job, Observed(gang_served=True, **more), NOW, CONFIG)
    pods = [parse_pod(creation.manifest) for creation in first.creations]
    waits = {"created": NOW.replace(year=NOW.year - 1), "unschedulable": "0/2 nodes are available"}
    waiting = [replace(one, uid=one.name, **waits) for one in pods if isinstance(one, Pod)]
    assert first.status is not None
    job = job.model_copy(update={"status": first.status})
    return plan(job, Observed(tuple(waiting), gang_served=True, cluster=nodes, **more), NOW, CONFIG)


def stalled(found: Plan) -> tuple[str, str]:
    assert found.status is not None
    condition = found.status.condition("Stalled")
    assert condition is not None
    return condition.reason, condition.message


def test_a_gang_that_fits_the_empty_cluster_waits() -> None:
    found = decided(gang_of(6), (node(), node("n2")))
    reason, message = stalled(found)
    assert reason == "Unschedulable"
    assert "the gang of 8 pods" in message
    assert "larger" not in message


def test_a_gang_larger_than_the_cluster_reports_the_largest_size() -> None:
    found = decided(gang_of(7), (node(), node("n2")))
    reason, message = stalled(found)
    assert reason == "GangTooLarge"
    assert message.startswith(
        "the gang is larger than the cluster: the 2 empty nodes of the cluster hold the "
        "coordinator, 1 trainer and at most 6 rollout machines, where the gang has 7; add nodes, request smaller "
        "machines, or lower spec.rollout.minMachines to 6. "
    )
    assert "0/2 nodes are available" in message, "the scheduler's own words"
    assert found.again_seconds is not None
    assert found.again_seconds <= gang_size.RECHECK_SECONDS, "nodes may be added"
    assert "GangTooLarge" in [event.reason for event in found.events]


def test_a_cluster_without_room_for_the_trainer_says_so() -> None:
    _, message = stalled(decided(gang_of(1), (node(cpu="1"),)))
    assert "hold not even the coordinator, 1 trainer and no rollout machine; add nodes, or request smaller" in message
    _, message = stalled(decided(gang_of(1), (node(cpu="2"),)))
    assert "at most 0 rollout machines, where the gang has 1; add nodes, or request smaller machines. " in message


def test_who_may_not_read_nodes_says_that_it_does_not_know() -> None:
    reason, message = stalled(decided(gang_of(7), None))
    assert reason == "Unschedulable"
    assert "whether the cluster could ever hold it is unknown: the operator may not list nodes" in message


def test_the_nodes_of_its_quota_count() -> None:
    """Kueue has assigned a flavor that one node has."""
    job = gang_of(3)
    conditions = tuple({"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted"))
    assigned = {name: Assignment(("small",)) for name in ("coordinator", "trainer", "rollout")}
    counts = {"coordinator": 1, "trainer": 1, "rollout": 3}
    base = Workload("demo-base", reserved=True, counts=counts, assigned=assigned, conditions=conditions)
    base = replace(base, asks=workloads.asks(job, tuple(Role), CONFIG))
    flavors = {"small": Flavor("small", {"kubernetes.io/hostname": "n1"})}
    found = decided(job, (node(), node("n2")), kueue=Kueue("lq", None, {"demo-base": base}, flavors))
    assert stalled(found)[0] == "GangTooLarge"
    assert "at most 2 rollout machines" in stalled(found)[1]


def test_of_other_troubles_nothing_is_told_about_the_size() -> None:
    job, seen = gang_of(7), Observed(gang_served=True, cluster=(node(),))
    stall = ConditionReason("ImagePullFailed", "no such image")
    assert gang_size.explained(job, seen, stall, CONFIG) == stall
    assert gang_size.explained(job, seen, None, CONFIG) is None
    plain = gang_of(7, scheduling={"gang": "None"})
    homeless = ConditionReason("Unschedulable", "no node")
    assert gang_size.explained(plain, seen, homeless, CONFIG) == homeless
