"""Gangs placed by the real scheduler, on nodes that kwok keeps: two nodes of three processors, and jobs whose pods take
one each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.local_cluster.private.apiserver import api_server
from hack.local_cluster.private.kwok import FakeNodes, fake_nodes
from tests.support.operator.fake_life import RUNNING, Life, install_crd, own_life
from tests.support.operator.harness import condition, manifest, merged

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NATIVE = {"features": {"GenericWorkload": True}, "apis": ["scheduling.k8s.io/v1beta1"]}
HELD = {"key": "held", "operator": "Exists", "effect": "NoSchedule"}
"""A taint that holds pods back for a while."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeNodes]:
    folder = tmp_path_factory.mktemp("gang")
    with api_server(folder, controllers=True, **NATIVE) as server, fake_nodes(server, 2, {"cpu": "3"}) as found:
        install_crd(server)
        yield found


@pytest.fixture
def life(nodes: FakeNodes, tmp_path: Path) -> Iterator[Life]:
    with own_life(nodes, tmp_path / "operator.log") as found:
        yield found
        free_the_nodes(found)


def free_the_nodes(life: Life) -> None:
    """Delete the jobs, and their pods: the garbage collector of a new server sees new kinds of owners after 30 s."""
    life.kubectl("delete", "rljobs", "--all", "--timeout=60s")
    life.kubectl("delete", "pods", "--all", "--now", "--wait=false")
    life.until("no pods", lambda: not life.items("pods"))


def template(*, node: str | None = None, early: bool = False) -> dict[str, Any]:
    """A pod of one processor, on that node; `early`: also while others are held back."""
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
    spec |= {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    spec |= {"tolerations": [HELD]} if early else {}
    return {"template": {"spec": spec}}


def apply(life: Life, name: str, gang: str, machines: int = 2, smallest: int = 2, **roles: Any) -> None:
    rollout = {"machines": machines, "minMachines": smallest, "maxMachines": machines, **template()}
    spec: dict[str, Any] = {"coordinator": template(), "trainer": template(), "rollout": rollout}
    spec = merged(spec, {"scheduling": {"gang": gang}, **roles})
    life.kubectl("apply", "-f", "-", stdin=json.dumps(manifest(name, life.kubectl.namespace, **spec)))


def placed(life: Life, name: str) -> int:
    """Pods of the job that have a node."""
    items = life.items("pods", f"rljob.dev/job={name}")
    return sum("nodeName" in item["spec"] and "deletionTimestamp" not in item["metadata"] for item in items)


def ready(life: Life, name: str) -> Callable[[], bool]:
    return lambda: condition(life.of(name), "Ready") == RUNNING


def message(life: Life, name: str, type_: str = "Stalled") -> str:
    conditions = (life.of(name).get("status") or {}).get("conditions") or []
    return next((c["message"] for c in conditions if c["type"] == type_), "")


def held_back(life: Life, on: bool) -> None:
    taint = f"{HELD['key']}=true:{HELD['effect']}"
    life.kubectl("taint", "nodes", *life.nodes.names, taint if on else f"{taint}-")


def count(life: Life, name: str) -> int:
    return len(life.items("pods", f"rljob.dev/job={name}"))


def at_the_same_time(life: Life, gang: str) -> None:
    """Two jobs ask for the same six processors: coordinator and trainer of each on its own node, its rollout machines
    on the other's. Coordinators and trainers may have their places before any rollout machine has."""
    held_back(life, True)
    for name, one, other in (("a", "fake-1", "fake-2"), ("b", "fake-2", "fake-1")):
        fixed = template(node=one, early=True)
        apply(life, name, gang, coordinator=fixed, trainer=fixed, rollout=template(node=other))
    life.until("all pods", lambda: count(life, "a") == count(life, "b") == 4)
    early = 2 if gang == "None" else 0
    life.until("those that may", lambda: placed(life, "a") == placed(life, "b") == early)
    held_back(life, False)


@pytest.mark.slow
def test_without_a_gang_two_jobs_hold_half_of_what_either_needs(life: Life) -> None:
    at_the_same_time(life, "None")
    for name in ("a", "b"):
        life.until(f"{name} is stuck", lambda name=name: "Unschedulable" in life.kubectl("get", "rljob", name))
    # On a busy machine they were told so while all were held back.
    life.until("each has half", lambda: (placed(life, "a"), placed(life, "b")) == (3, 3))
    for _ in range(10):
        assert (placed(life, "a"), placed(life, "b")) == (3, 3)
        time.sleep(0.5)


@pytest.mark.slow  # one gang that waits is below
def test_with_gangs_one_job_runs_and_then_the_other(life: Life) -> None:
    at_the_same_time(life, "Native")
    life.until("one of them runs", lambda: 4 in (placed(life, "a"), placed(life, "b")))
    runs, waits = ("a", "b") if placed(life, "a") == 4 else ("b", "a")
    life.until(f"{runs} is ready", ready(life, runs))
    why = ("the gang of 4 pods", "minCount (4)")
    life.until(f"{waits} says why it waits", lambda: all(words in message(life, waits) for words in why))
    assert placed(life, waits) == 0
    row = life.kubectl("get", "rljob", waits)
    assert "Stalled" in row
    assert "Unschedulable" in row

    life.kubectl("patch", "rljob", runs, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    life.until(f"{waits} is ready", ready(life, waits))
    life.kubectl("patch", "rljob", runs, "--type=merge", "-p", '{"spec":{"suspend":false}}')
    life.until(f"{runs} waits as a gang again", lambda: "the gang of 4 pods" in message(life, runs))
    assert placed(life, runs) == 0
    life.kubectl("delete", "rljob", waits)
    life.until(f"{runs} is ready again", ready(life, runs))


def test_replacements_of_a_running_job_join_without_waiting_for_the_rest(life: Life) -> None:
    apply(life, "a", "Native")
    life.until("it runs", ready(life, "a"))
    group = life.kubectl.get("podgroups.scheduling.k8s.io", "a")
    assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 4
    life.operator.kill()
    life.kubectl("delete", "pod", "a-coordinator-0-1", "a-rollout-0-1", "--now", "--wait=true")
    neighbours = [{"name": f"n{number}", "resources": {"requests": {"cpu": "1"}}} for number in range(3)]
    for one in neighbours:
        pod = {"containers": [{**one, "image": "example/neighbour:1"}]}
        life.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": one["name"]}, "spec": pod})
    life.until("three of four places are taken", lambda: neighbours_placed(life) == 3)
    life.operator.start()
    life.until("one has the last place", lambda: placed(life, "a") == 3)
    # Each role's pods are made after those of the one before.
    life.until("both replacements", lambda: set(replacements(life)) == {"a-coordinator-0-2", "a-rollout-0-2"})
    pods = replacements(life).values()
    assert [pod["metadata"]["name"] for pod in pods if "nodeName" in pod["spec"]] == ["a-coordinator-0-2"]
    assert not [pod for pod in pods if "schedulingGroup" in pod["spec"]]
    life.kubectl("delete", "pod", *(one["name"] for one in neighbours), "--now")
    life.until("it runs whole", ready(life, "a"))


def replacements(life: Life) -> dict[str, Any]:
    """Pods of the second incarnation by name."""
    return {pod["metadata"]["name"]: pod for pod in life.items("pods", "rljob.dev/incarnation=2")}


def neighbours_placed(life: Life) -> int:
    items = life.items("pods", "!rljob.dev/job")
    return sum("nodeName" in item["spec"] for item in items)


def test_a_native_group_holds_pods_until_all_exist(life: Life) -> None:
    """Why replacements stand outside of the group: this is how Kubernetes 1.37 treats one that belongs to it."""
    group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}}
    life.kubectl.apply({**group, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})

    def pod(name: str) -> None:
        spec = {"containers": [{"name": "main", "image": "example/one:1"}], "schedulingGroup": {"podGroupName": "g"}}
        life.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    pod("one")
    pod("two")
    life.until("both are placed", lambda: neighbours_placed(life) == 2)
    life.kubectl("delete", "pod", "one", "two", "--now", "--wait=true")
    pod("three")
    for _ in range(10):
        assert neighbours_placed(life) == 0
        time.sleep(0.5)
    life.kubectl(
        "patch", "podgroup", "g", "--type=merge", "-p", '{"spec":{"schedulingPolicy":{"gang":{"minCount":1}}}}'
    )
    life.until("a smaller group lets it go", lambda: neighbours_placed(life) == 1)
    life.kubectl("delete", "pod", "three", "--now")


def test_a_gang_larger_than_the_cluster_begins_once_its_base_is_smaller(nodes: FakeNodes, tmp_path: Path) -> None:
    """Told by an operator that may see nodes, and told from one that only waits."""
    with own_life(nodes, tmp_path / "operator.log", everywhere=True) as life:
        apply(life, "a", "Native", machines=6, smallest=6)
        life.until("it is told", lambda: "GangTooLarge" in life.kubectl("get", "rljob", "a"))
        hold = "the 2 empty nodes of the cluster hold the coordinator, 1 trainer and at most 4"
        assert hold in message(life, "a")
        assert "or lower spec.rollout.minMachines to 4" in message(life, "a")
        life.until_events("GangTooLarge")
        assert placed(life, "a") == 0
        apply(life, "a", "Native", machines=6, smallest=4)
        life.until("it runs", ready(life, "a"))
        group = life.kubectl.get("podgroups.scheduling.k8s.io", "a")
        assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 6
        apply(life, "b", "Native", machines=4, smallest=4)
        life.until("one that fits waits", lambda: "the gang of 6 pods" in message(life, "b"))
        assert "GangTooLarge" not in life.kubectl("get", "rljob", "b")
        free_the_nodes(life)


def test_an_operator_that_may_not_see_nodes_says_so(life: Life) -> None:
    apply(life, "a", "Native", machines=6, smallest=6)
    life.until("it is told", lambda: "the gang of 8 pods" in message(life, "a"))
    assert "whether the cluster could ever hold it is unknown: the operator may not list nodes" in message(life, "a")
    assert "Unschedulable" in life.kubectl("get", "rljob", "a")


def test_a_priority_class_that_is_gone_is_told_for_the_group_and_for_a_pod(life: Life) -> None:
    apply(life, "a", "Native", scheduling={"gang": "Native", "priorityClassName": "gone"})
    life.until("it is told", lambda: "no PriorityClass with name gone" in message(life, "a"))
    assert "PriorityClassMissing" in life.kubectl("get", "rljob", "a")
    assert "create it, or name another one" in message(life, "a")
    assert life.kubectl("get", "pods", "-o", "name") == ""
    apply(life, "b", "None", scheduling={"gang": "None", "priorityClassName": "gone"})
    life.until("it is told of the pod", lambda: message(life, "b").startswith("coordinator-0: "))
    assert "PriorityClassMissing" in life.kubectl("get", "rljob", "b")
