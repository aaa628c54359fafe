"""What a platform team renews under a running job: the nodes' Kubernetes, the operator, and the operator's leader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest

from hack import demo
from hack.local_cluster import settings
from hack.local_cluster.settings import node_index
from tests.support.e2e.kubectl import SYSTEM_NAMESPACE, Kubectl
from tests.support.e2e.life import (
    Clock,
    begin,
    drain,
    ends_with_every_response_trained_on_once,
    goes_on,
    nothing_goes_back,
    uids,
)

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(1800)]

JOB = "renewed"
LEASE = "rljob-operator"
SYSTEM = Kubectl(SYSTEM_NAMESPACE)
Event = Callable[[Kubectl, str, int], AbstractContextManager[None]]
"""Something happens to the leader, whose pod is named, among so many operators."""


@pytest.mark.slow  # in make test: tests/e2e/test_chaos.py
def test_nodes_get_another_kubernetes_one_after_the_other(
    kubectl: Kubectl, minimal: dict[str, Any], real_nodes: Any, oldest_kubelet: str
) -> None:
    """As in a cluster's upgrade: the API server is new already, and the nodes are as old as they may be below it. Each
    is drained, switched off, switched on as a new one, and may be used again."""
    cluster = settings.load(real_nodes.name)
    assert cluster is not None
    new = cluster.kubernetes
    old = oldest_kubelet
    if old == new:
        pytest.skip(f"no minor below {new} is built here")
    nodes = kubectl.nodes()
    try:
        for node in nodes:
            _renew(kubectl, real_nodes, node, old)
        begin(kubectl, minimal, JOB, rollout={**minimal["spec"]["rollout"], "machines": 2})
        with nothing_goes_back(kubectl, JOB):
            for node in nodes:
                clock = Clock()
                drained = _renew(kubectl, real_nodes, node, new)
                renewed = clock.seconds
                goes_on(kubectl, JOB)
                print(
                    f"{node}, {old} to {new}: drained in {drained:.0f} s, in use again after {renewed:.0f} s, "
                    f"two rounds later after {clock.seconds:.0f} s"
                )
        ends_with_every_response_trained_on_once(kubectl, JOB)
    finally:
        with ExitStack() as stack:
            for node in nodes:
                stack.callback(_restore, kubectl, real_nodes, node, new)


def _renew(kubectl: Kubectl, real_nodes: Any, node: str, minor: str) -> float:
    """Programs of another minor on the node; how long its drain took."""
    drained = drain(kubectl, node)
    real_nodes.node("kill", node_index(node))
    real_nodes.node("up", node_index(node), "--kubernetes", minor)
    kubectl("uncordon", node)
    kubectl.wait(f"{node} of {minor}", lambda: _kubelet(kubectl, node).startswith(f"v{minor}."), 60)
    return drained


def _restore(kubectl: Kubectl, real_nodes: Any, node: str, minor: str) -> None:
    """Leave the node on, with programs of this minor, for the tests that follow."""
    try:
        real_nodes.node("up", node_index(node), "--kubernetes", minor)
    except AssertionError as error:
        if "is on already" not in str(error):
            raise
    if not _kubelet(kubectl, node).startswith(f"v{minor}."):
        _renew(kubectl, real_nodes, node, minor)
    kubectl("uncordon", node)


def _kubelet(kubectl: Kubectl, node: str) -> str:
    return str(kubectl.get("node", node)["status"]["nodeInfo"]["kubeletVersion"])


@contextmanager
def _upgraded(kubectl: Kubectl, leader: str, count: int) -> Iterator[None]:
    """`helm upgrade`, from the moment on at which the leader is asked to go."""
    with ThreadPoolExecutor(1) as beside:
        upgrade = beside.submit(demo.install_operator, "--set", f"replicas={count}")
        kubectl.wait("the leader is asked to go", lambda: upgrade.done() or leader not in _operators(), 120)
        yield
        upgrade.result(200)


@contextmanager
def _killed(kubectl: Kubectl, leader: str, count: int) -> Iterator[None]:
    """By force: the kubelet leaves it a moment, in which it may give its Lease back."""
    SYSTEM("delete", "pod", leader, "--grace-period=0", "--force", "--wait=false")
    yield


# One operator that is killed is a part of test_real_nodes.py, the upgrade from the first release of
# tests/integration/charts.
@pytest.mark.slow  # in make test: tests/integration/operator/test_api_faults.py
@pytest.mark.parametrize(("event", "count"), [(_upgraded, 1), (_upgraded, 2), (_killed, 1), (_killed, 2)])
def test_another_operator_takes_over(kubectl: Kubectl, minimal: dict[str, Any], event: Event, count: int) -> None:
    with _replicas(count):
        begin(kubectl, minimal, JOB)
        leader = _present_leader(kubectl)
        with nothing_goes_back(kubectl, JOB), event(kubectl, leader, count):
            told = _reconciles_again(kubectl, leader)
        ends_with_every_response_trained_on_once(kubectl, JOB)
    print(f"{event.__name__.strip('_')}, {count} operators: {told}")


@pytest.mark.slow  # in make test: tests/integration/operator/test_api_faults.py
def test_the_leaders_node_is_cut_off(kubectl: Kubectl, minimal: dict[str, Any], real_nodes: Any) -> None:
    with _replicas(2):
        leader = _present_leader(kubectl)
        node = _operators()[leader]["spec"]["nodeName"]
        kubectl("cordon", node)  # the job's pods are to be elsewhere
        try:
            begin(kubectl, minimal, JOB)
            with nothing_goes_back(kubectl, JOB):
                real_nodes.node("cut", node_index(node))
                try:
                    told = _reconciles_again(kubectl, leader)
                finally:
                    real_nodes.node("join", node_index(node))
        finally:
            kubectl("uncordon", node)
        ends_with_every_response_trained_on_once(kubectl, JOB)
    print(f"cut off, 2 operators: {told}")


def _reconciles_again(kubectl: Kubectl, leader: str) -> str:
    """An edit waits until another operator leads. The pods are the same, and the requested one. In words."""
    before = uids(kubectl, JOB)
    clock = Clock()
    kubectl("scale", "rljob", JOB, "--replicas=2")
    kubectl.wait("another leader", lambda: _leader() not in ("", leader), 120)
    led = clock.seconds
    kubectl.wait("the edit is seen", lambda: len(kubectl.pods(JOB)) > len(before), 120)
    acted = clock.seconds
    goes_on(kubectl, JOB)
    kubectl.wait("the new machine takes part", lambda: kubectl.job(JOB)["status"]["rollout"].get("ready") == 2)
    after = uids(kubectl, JOB)
    assert before.items() <= after.items(), "the same pods"
    assert set(after) - set(before) == {f"{JOB}-rollout-1-1"}
    return f"another one leads after {led:.1f} s and has reconciled after {acted:.1f} s"


@contextmanager
def _replicas(count: int) -> Iterator[None]:
    """So many operators, and one again in the end, as the other tests have it."""
    if count > 1:
        demo.install_operator("--set", f"replicas={count}")
    try:
        yield
    finally:
        if count > 1:
            demo.install_operator()


def _leader() -> str:
    """The operator's pod that acts."""
    return str(SYSTEM.get("lease", LEASE)["spec"].get("holderIdentity") or "")


def _present_leader(kubectl: Kubectl) -> str:
    """The pod that acts, once it is one that stays: the Lease of one that goes is another's a moment later."""

    def leads() -> str:
        leader = _leader()
        return leader if leader in _operators() else ""

    return str(kubectl.wait("a leader", leads, 120))


def _operators() -> dict[str, dict[str, Any]]:
    """The operator's pods that are not being deleted."""
    found = SYSTEM.get("pods", "-l", "app.kubernetes.io/name=rljob")["items"]
    return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}
