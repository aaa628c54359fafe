"""kwok's nodes: what happens to a pod there, by the scheduler, the controllers and kwok."""

import itertools
import time
from pathlib import Path

import pytest

from hack.local_cluster.private import kwok
from hack.local_cluster.process import Daemons
from tests.support.local_cluster import own_namespace, wait_for
from tests.support.open_files import open_files


@pytest.fixture(scope="module")
def kubectl(fake_nodes):
    with own_namespace(fake_nodes.server.kubeconfig) as made:
        yield made


def pod(name, **annotations):
    container = {"name": "main", "image": "never/runs:this", "resources": {"requests": {"cpu": "1"}}}
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 3}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


def ready(kubectl, name):
    return kubectl.condition("pod", name, "Ready")


@pytest.mark.cluster
def test_a_pod_is_bound_runs_fails_and_goes(fake_nodes, kubectl):
    kubectl.apply(pod("fails"))
    wait_for("Ready", lambda: ready(kubectl, "fails") == "True")
    before = kubectl.get("pod", "fails")
    assert before["spec"]["nodeName"] in fake_nodes.names
    assert before["status"]["phase"] == "Running"
    fake_nodes.fail_pod(kubectl.namespace, "fails", exit_code=137)
    wait_for("its end", lambda: kubectl.phase("fails") == "Failed")
    after = kubectl.get("pod", "fails")["status"]
    assert after["podIP"] == before["status"]["podIP"]
    assert after["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert {c["type"]: c["status"] for c in after["conditions"]}["PodScheduled"] == "True"
    kubectl("delete", "pod", "fails", "--timeout=30s")


@pytest.mark.cluster
def test_success_is_exit_code_0(fake_nodes, kubectl):
    kubectl.apply(pod("completes"))
    wait_for("Ready", lambda: ready(kubectl, "completes") == "True")
    fake_nodes.fail_pod(kubectl.namespace, "completes", exit_code=0)
    wait_for("its end", lambda: kubectl.phase("completes") == "Succeeded")


@pytest.mark.cluster
def test_a_pod_hangs_from_its_start_or_later_until_it_recovers(fake_nodes, kubectl):
    kubectl.apply(pod("late", **{kwok.HANGS: "true"}), pod("hangs"))
    for name, before in (("late", "False"), ("hangs", "True")):
        wait_for(f"{name} to run", lambda name=name: kubectl.phase(name) == "Running")
        assert ready(kubectl, name) == before
    fake_nodes.hang_pod(kubectl.namespace, "hangs")
    wait_for("not Ready", lambda: ready(kubectl, "hangs") == "False")
    assert kubectl.phase("hangs") == "Running"
    for name in ("late", "hangs"):
        fake_nodes.recover_pod(kubectl.namespace, name)
        wait_for("Ready", lambda name=name: ready(kubectl, name) == "True")


@pytest.mark.cluster
def test_a_pod_that_ignores_sigterm_lasts_through_its_grace(kubectl):
    stays = pod("stays", **{kwok.IGNORES_SIGTERM: "true"})
    stays["spec"]["terminationGracePeriodSeconds"] = 10  # so that it is there when the other one's end is seen
    kubectl.apply(stays, pod("goes"))
    for name in ("stays", "goes"):
        wait_for("Ready", lambda name=name: ready(kubectl, name) == "True")
    kubectl("delete", "pod", "stays", "goes", "--wait=false")
    began = time.monotonic()
    wait_for("the quick one's end", lambda: not kubectl.phase("goes"))
    assert kubectl.get("pod", "stays")["metadata"]["deletionTimestamp"]
    wait_for("the other one's end", lambda: not kubectl.phase("stays"))
    assert time.monotonic() - began > 1, "the API server counts whole seconds"


@pytest.mark.cluster
def test_a_silent_node_is_noticed_and_keeps_its_pods_until_it_is_back(fake_nodes, kubectl):
    kubectl.apply(pod("kept"))
    wait_for("Ready", lambda: ready(kubectl, "kept") == "True")
    node = kubectl.get("pod", "kept")["spec"]["nodeName"]
    fake_nodes.hang(node)
    try:
        wait_for("Unknown", lambda: kubectl.condition("node", node, "Ready") == "Unknown")
        kubectl("delete", "pod", "kept", "--wait=false")
        time.sleep(5)
        assert kubectl.get("pod", "kept")["metadata"]["deletionTimestamp"], "no kubelet reports its end"
    finally:
        fake_nodes.recover(node)
    wait_for("Ready", lambda: kubectl.condition("node", node, "Ready") == "True")
    wait_for("its end", lambda: not kubectl.phase("kept"))


@pytest.mark.cluster
def test_what_no_node_has_room_for_stays_pending(kubectl):
    large = pod("large")
    large["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1000"
    kubectl.apply(large)
    wait_for("the scheduler's word", lambda: kubectl.condition("pod", "large", "PodScheduled") == "False")
    assert kubectl.phase("large") == "Pending"


@pytest.mark.cluster
def test_kwok_listens_nowhere(fake_nodes):
    running = Daemons(fake_nodes.server.folder / "kwok", fake_nodes.server.folder / "logs").get("kwok")
    assert running.alive
    # It is connected to the API server, whose address it was given.
    assert sockets(running.pid, "01")
    assert not sockets(running.pid, "0A")


def sockets(pid, state):
    """The process's TCP sockets in a state (proc_pid_net(5)): 01 is established, 0A listens."""
    held = open_files(pid)
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {line[9] for line in lines if line[3] == state and f"socket:[{line[9]}]" in held}


def fits(stage, facts):
    """Whether a stage's selector holds for an object whose values at the selectors' keys are ``facts``."""
    holds = {
        "In": lambda value, values: value in values,
        "NotIn": lambda value, values: value not in values,
        "Exists": lambda value, _: value is not None,
        "DoesNotExist": lambda value, _: value is None,
    }
    asked = [expression["jq"] for expression in stage["spec"]["selector"]["matchExpressions"]]
    return all(holds[one["operator"]](facts.get(one["key"]), one.get("values")) for one in asked)


def test_no_two_stages_fit_a_pod_at_a_time():
    """kwok would choose one by chance."""
    stages = [stage for stage in kwok.stages() if stage["spec"]["resourceRef"]["kind"] == "Pod"]
    keys = {e["jq"]["key"] for stage in stages for e in stage["spec"]["selector"]["matchExpressions"]}
    (phase,) = (key for key in keys if key.endswith("phase"))
    (is_ready,) = (key for key in keys if key.endswith("| .status"))
    (deleted,) = (key for key in keys if key.endswith("deletionTimestamp"))
    others = sorted(keys - {phase, is_ready})
    assert len(others) == 4
    seen = set()
    for state in itertools.product(("Pending", "Running", "Failed", "Succeeded"), (None, "True", "False")):
        for present in itertools.product((None, "x"), repeat=len(others)):
            facts = {phase: state[0], is_ready: state[1], **dict(zip(others, present, strict=True))}
            fitting = [stage["metadata"]["name"] for stage in stages if fits(stage, facts)]
            assert len(fitting) <= 1, facts
            assert bool(fitting) or facts[deleted] is None, "a deleted pod goes"
            seen |= set(fitting)
    assert seen == {stage["metadata"]["name"] for stage in stages}
