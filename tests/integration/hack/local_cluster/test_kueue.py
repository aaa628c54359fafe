"""Kueue's real manager beside a private API server: it admits, preempts, converts and refuses, and can be stopped."""

import json

import pytest

from hack.local_cluster import kube
from tests.support.local_cluster import own_namespace, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def kubectl(kueue):
    nodes, _ = kueue
    with own_namespace(nodes.server.kubeconfig) as made:
        yield made


def quota(name, cpu):
    """One queue with so many processors, on any node; a more urgent job takes from the others."""
    covered = [{"name": name, "resources": [{"name": "cpu", "nominalQuota": cpu}]}]
    queue = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": covered}],
    }
    return [
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, spec in (("ResourceFlavor", {}), ("ClusterQueue", queue), ("LocalQueue", {"clusterQueue": name}))
    ]


def workload(name, queue, cpu, priority):
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    pods = [{"name": "main", "count": 1, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}]
    spec = {"queueName": queue, "priority": priority, "podSets": pods}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": name}, "spec": spec}


def admitted(kubectl, name):
    return kubectl.condition("workload", name, "Admitted") == "True"


def test_it_admits_what_fits_and_preempts_the_less_urgent(kubectl):
    kubectl.apply(*quota(kubectl.namespace, "2"))
    kubectl.apply(workload("base", kubectl.namespace, "1", 0), workload("surplus", kubectl.namespace, "1", -100))
    for name in ("base", "surplus"):
        wait_for(f"{name} admitted", lambda name=name: admitted(kubectl, name))
    kubectl.apply(workload("urgent", kubectl.namespace, "1", 0))
    wait_for("the surplus evicted", lambda: kubectl.condition("workload", "surplus", "Evicted") == "True")
    assert admitted(kubectl, "base")
    assert not admitted(kubectl, "urgent"), "quota comes back only from the job that holds it"
    kubectl("delete", "workload", "surplus")
    wait_for("the urgent one admitted", lambda: admitted(kubectl, "urgent"))
    older = json.loads(kubectl("get", "workloads.v1beta1.kueue.x-k8s.io", "urgent", "-o", "json"))
    assert older["spec"]["queueName"] == kubectl.namespace


def test_it_refuses_pod_sets_that_change_while_they_hold_quota(kubectl):
    kubectl.apply(*quota(kubectl.namespace, "2"))
    kubectl.apply(workload("one", kubectl.namespace, "1", 0))
    wait_for("admitted", lambda: admitted(kubectl, "one"))
    changed = {"spec": {"podSets": workload("one", kubectl.namespace, "2", 0)["spec"]["podSets"]}}
    with pytest.raises(AssertionError, match="podSets"):
        kubectl("patch", "workload", "one", "--type=merge", "-p", json.dumps(changed))


def test_it_stops_and_goes_on(kueue, kubectl):
    nodes, manager = kueue
    kubectl.apply(*quota(kubectl.namespace, "1"))
    manager.stop()
    api = nodes.server.client()
    path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{kubectl.namespace}/workloads"
    try:
        with pytest.raises(kube.ApiError, match="failed calling webhook"):
            api.call("POST", path, workload("late", kubectl.namespace, "1", 0))
    finally:
        manager.start()
    kubectl.apply(workload("late", kubectl.namespace, "1", 0))
    wait_for("admitted", lambda: admitted(kubectl, "late"))
