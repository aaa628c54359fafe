"""The operator as a process, beside Kueue's real manager, the real scheduler and the real controllers. kwok stands in
for the kubelets, and `stand_in_coordinator.py` for the coordinators."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.local_cluster.private.kueue import Manager
from hack.local_cluster.private.kwok import FakeNodes
from tests.support.crd import until_established
from tests.support.kueue_admission import Watch
from tests.support.local_cluster import Kubectl
from tests.support.operator.device_fleet import Fleet
from tests.support.operator.fake_life import Life, OperatorProcess
from tests.support.operator.harness import condition, manifest
from tests.support.operator.stand_in_coordinator import StandInCoordinators
from tests.support.paths import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

Json = dict[str, Any]
V = "kueue.x-k8s.io/v1beta2"
ONE = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}}
"""Every pod asks for one processor: a job of n rollout machines for n + 2."""


class Tenancy(Life):
    """Several jobs in a namespace, and the queue that it shares."""

    manager: Manager

    def quota(
        self, cpu: str, labels: dict[str, str] | None = None, namespaces: dict[str, str] | None = None, **more: str
    ) -> None:
        """The namespace's own flavor and ClusterQueue, with `more` resources; the more urgent takes from the others.
        `labels`: of the flavor's nodes; `namespaces`: of those that it serves, all by default."""
        name = self.kubectl.namespace
        quotas = [{"name": one, "nominalQuota": quota} for one, quota in {"cpu": cpu, **more}.items()]
        group = {"coveredResources": ["cpu", *more], "flavors": [{"name": name, "resources": quotas}]}
        queue = {
            "namespaceSelector": {"matchLabels": namespaces or {}},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [group],
        }
        self.kubectl.apply(
            {
                "apiVersion": V,
                "kind": "ResourceFlavor",
                "metadata": {"name": name},
                "spec": {"nodeLabels": labels or {}},
            },
            {"apiVersion": V, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": queue},
        )

    def queue(self) -> None:
        spec = {"clusterQueue": self.kubectl.namespace}
        self.kubectl.apply({"apiVersion": V, "kind": "LocalQueue", "metadata": {"name": "lq"}, "spec": spec})

    def stop(self, policy: str) -> None:
        """How the ClusterQueue admits: `None`, `Hold`, or `HoldAndDrain`."""
        patch = json.dumps({"spec": {"stopPolicy": policy}})
        self.kubectl("patch", "clusterqueue", self.kubectl.namespace, "--type=merge", "-p", patch)

    def submit(
        self,
        name: str,
        machines: int,
        labels: dict[str, str] | None = None,
        rollout: Json | None = None,
        **changes: Any,
    ) -> None:
        bounds = {"machines": machines, "minMachines": 1, "maxMachines": machines, "template": ONE, **(rollout or {})}
        roles = {"coordinator": {"template": ONE}, "trainer": {"template": ONE}}
        run = {"runPolicy": {"drainSeconds": 20}, "checkpoint": {"volumeClaimName": "state"}}
        body = manifest(name, self.kubectl.namespace, rounds=1000, rollout=bounds, **roles, **run, **changes)
        body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "lq", **(labels or {})}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def live(self, name: str) -> set[str]:
        """Pods of a job that are not being deleted."""
        items = self.items("pods", f"rljob.dev/job={name}")
        return {
            i["metadata"]["name"].removeprefix(f"{name}-") for i in items if "deletionTimestamp" not in i["metadata"]
        }

    def workloads(self) -> dict[str, Json]:
        items = self.items("workloads", api=f"apis/{V}")
        return {item["metadata"]["name"]: item for item in items}

    def holding(self) -> set[str]:
        """Workloads that hold quota."""
        return {name for name, one in self.workloads().items() if (one.get("status") or {}).get("admission")}

    def until_stalled(self, name: str, reason: str) -> Json:
        self.until(f"{name} is Stalled={reason}", lambda: condition(self.of(name), "Stalled") == f"True/{reason}")
        self.until(f"event {reason}", lambda: reason in self.events())
        return self.of(name)

    def until_condition(self, name: str, kind: str, value: str | None) -> Json:
        """The operator says so: it writes the status after what it did, and Kueue writes its own."""
        self.until(f"{name} is {kind}={value}", lambda: condition(self.of(name), kind) == value)
        return self.of(name)

    def suspend(self, name: str, suspend: bool) -> None:
        """By hand."""
        self.kubectl("patch", "rljob", name, "--type=merge", "-p", json.dumps({"spec": {"suspend": suspend}}))

    def until_runs(self, name: str, *pods: str, base: int = 1) -> None:
        """The job is ready on exactly these pods, and the `base`-th coordinator and trainer."""

        def runs() -> bool:
            ready = condition(self.of(name), "Ready") == "True/RoundsProgressing"
            return ready and self.live(name) == {f"coordinator-0-{base}", f"trainer-0-{base}", *pods}

        self.until(f"{name} runs on {pods}", runs)


@pytest.fixture(scope="module")
def with_crd(kueue: tuple[FakeNodes, Manager]) -> tuple[FakeNodes, Manager]:
    kubectl = Kubectl(kueue[0].server.kubeconfig, "default")
    kubectl("apply", "--server-side", "-f", str(ROOT / "crds/rljob.yaml"))
    until_established(kubectl)
    return kueue


@pytest.fixture
def tenancy(with_crd: tuple[FakeNodes, Manager], tmp_path: Path) -> Iterator[Tenancy]:
    nodes, manager = with_crd
    kubeconfig = nodes.server.kubeconfig
    kubectl = Kubectl(kubeconfig, f"t-{uuid.uuid4().hex[:8]}")
    kubectl("create", "namespace", kubectl.namespace)
    _volume(kubectl)
    operator = OperatorProcess(kubeconfig, kubectl.namespace, tmp_path / "operator.log")
    operator.start()
    with StandInCoordinators(kubeconfig, kubectl.namespace) as coordinators:
        found = Tenancy(kubectl, operator, nodes)
        found.manager = manager
        with Watch(nodes.server.client(), kubectl.namespace, kubectl.namespace) as watch:
            yield found
    operator.stop()
    watch.check()
    assert coordinators.stall == []
    kubectl("delete", "namespace", kubectl.namespace, "--wait=false", "--ignore-not-found")
    kubectl("delete", "pv", kubectl.namespace, "--wait=false", "--ignore-not-found")


def _volume(kubectl: Kubectl) -> None:
    """The claim of the jobs' checkpoints, on a volume that nothing reads."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    volume = {"capacity": size, "accessModes": modes, "hostPath": {"path": "/nowhere"}, "storageClassName": ""}
    claim = {"accessModes": modes, "resources": {"requests": size}, "storageClassName": ""}
    claim["volumeName"] = kubectl.namespace
    kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": kubectl.namespace}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "state"}, "spec": claim},
    )


def test_a_neighbours_base_takes_one_machine_which_comes_back(tenancy: Tenancy) -> None:
    tenancy.quota("7")
    tenancy.queue()
    tenancy.submit("a", 3)
    tenancy.until_runs("a", "rollout-0-1", "rollout-1-1", "rollout-2-1")
    assert tenancy.holding() == {"a-base", "a-rollout-1", "a-rollout-2"}
    base = tenancy.workloads()["a-base"]
    counts = {one["name"]: one["count"] for one in base["spec"]["podSets"]}
    assert counts == {"coordinator": 1, "trainer": 1, "rollout": 1}

    def ready() -> bool:
        conditions = tenancy.workloads()["a-base"]["status"]["conditions"]
        return {"PodsReady": "True"}.items() <= {c["type"]: c["status"] for c in conditions}.items()

    tenancy.until("Kueue knows that a's base is ready", ready)

    tenancy.submit("b", 1)
    tenancy.until_runs("b", "rollout-0-1")
    left = {name for name in ("rollout-1-1", "rollout-2-1") if name in tenancy.live("a")}
    assert len(left) == 1, "one machine of a, and not two"
    tenancy.until_runs("a", "rollout-0-1", *left)
    tenancy.until("a's base and one machine, and b's base hold quota", lambda: len(tenancy.holding()) == 3)
    tenancy.until_condition("a", "Admitted", "True/PartlyAdmitted")
    tenancy.until("the target is what is admitted", lambda: tenancy.of("a")["status"]["rollout"]["desired"] == 2)
    assert "Kueue evicted" in tenancy.of("a")["status"]["target"]["reason"]

    tenancy.kubectl("delete", "rljob", "b")
    (gone,) = {"rollout-1-1", "rollout-2-1"} - left
    tenancy.until_runs("a", "rollout-0-1", *left, f"{gone[:-2]}-2")
    tenancy.until_condition("a", "Admitted", "True/Admitted")


def test_an_evicted_base_saves_its_state_and_continues_when_admitted(tenancy: Tenancy) -> None:
    tenancy.quota("8")
    tenancy.queue()
    tenancy.submit("a", 2)
    tenancy.until_runs("a", "rollout-0-1", "rollout-1-1")
    tenancy.stop("HoldAndDrain")
    tenancy.until("no pods", lambda: not tenancy.live("a"))
    tenancy.until("no quota held", lambda: not tenancy.holding())
    tenancy.until("not ready", lambda: (condition(tenancy.of("a"), "Ready") or "").startswith("False/"))
    job = tenancy.of("a")
    assert job["status"]["runtime"]["stage"] == "Suspended", "the coordinator was asked, and answered"
    tenancy.stop("None")
    again = {"coordinator-0-2", "trainer-0-2", "rollout-0-2", "rollout-1-2"}
    tenancy.until("all pods again", lambda: tenancy.live("a") == again)
    tenancy.until_condition("a", "Ready", "True/RoundsProgressing")


def test_what_does_not_pass_by_itself_is_told_with_what_to_do(tenancy: Tenancy) -> None:
    tenancy.submit("a", 1)
    job = tenancy.until_stalled("a", "QueueNotFound")
    assert "LocalQueue lq doesn't exist" in json.dumps(job["status"]["conditions"])
    assert tenancy.live("a") == set()
    tenancy.quota("2", namespaces={"team": "another"})
    tenancy.queue()
    job = tenancy.until_stalled("a", "NamespaceNotSelected")
    assert "give the namespace the labels of the ClusterQueue's namespaceSelector" in json.dumps(job)
    tenancy.quota("2")
    tenancy.until_stalled("a", "QuotaTooSmall")
    assert tenancy.live("a") == set()
    tenancy.quota("3")
    tenancy.until_runs("a", "rollout-0-1")

    tenancy.submit("b", 1, accelerator={"resource": "example.com/gpu"}, rollout={"acceleratorsPerMachine": 1})
    job = tenancy.until_stalled("b", "ResourceNotInQueue")
    assert "resource example.com/gpu unavailable in ClusterQueue" in json.dumps(job)
    assert tenancy.live("b") == set()


def test_a_flavor_that_contradicts_the_template_is_told(tenancy: Tenancy) -> None:
    def on(node: str) -> Json:
        return {"template": {"spec": {**ONE["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}}}

    tenancy.quota("8", {"kubernetes.io/hostname": "fake-1"})
    tenancy.queue()
    tenancy.submit("a", 1, rollout=on("fake-2"))
    job = tenancy.until_stalled("a", "FlavorMismatch")
    assert "make the template's nodeSelector, affinity and tolerations agree" in json.dumps(job)
    assert tenancy.live("a") == set()
    assert tenancy.holding() == set()
    tenancy.submit("a", 1, rollout=on("fake-1"))
    tenancy.until_runs("a", "rollout-0-1")
    pods = tenancy.items("pods")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"fake-1"}


def test_a_suspended_job_gives_its_quota_back_and_is_admitted_again(tenancy: Tenancy) -> None:
    """Meanwhile what it names may go: a job that runs does not need it, one that asks does."""
    urgent, label = f"urgent-{tenancy.kubectl.namespace}", "kueue.x-k8s.io/priority-class"
    priority: Json = {"apiVersion": V, "kind": "WorkloadPriorityClass", "metadata": {"name": urgent}, "value": 10}
    tenancy.kubectl.apply(priority)
    tenancy.quota("8")
    tenancy.queue()
    tenancy.submit("a", 2, {label: urgent})
    tenancy.until_runs("a", "rollout-0-1", "rollout-1-1")
    assert tenancy.workloads()["a-base"]["spec"]["priority"] == 10
    tenancy.kubectl("delete", "workloadpriorityclass", urgent)
    tenancy.kubectl("delete", "localqueue", "lq")
    tenancy.fail("a-rollout-1-1")
    tenancy.until_runs("a", "rollout-0-1", "rollout-1-1", "rollout-1-2")  # what ended last can be looked at

    tenancy.suspend("a", True)
    tenancy.until("all is given back", lambda: not tenancy.live("a") and not tenancy.workloads())
    tenancy.until_condition("a", "Suspended", "True/SuspendedByUser")
    tenancy.until_condition("a", "Stalled", None)
    tenancy.suspend("a", False)
    job = tenancy.until_stalled("a", "PriorityClassNotFound")
    assert f"names WorkloadPriorityClass {urgent}, which does not exist: create it" in json.dumps(job)
    tenancy.kubectl.apply(priority)
    tenancy.until_stalled("a", "QueueNotFound")
    assert tenancy.live("a") == set()
    tenancy.queue()
    tenancy.until_runs("a", "rollout-0-2", "rollout-1-3", base=2)


def test_runners_are_a_part_of_the_quota_and_run_on_its_nodes(tenancy: Tenancy) -> None:
    def runners() -> list[Json]:
        items = tenancy.items("pods", "rljob.dev/environment")
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def shell(name: str) -> Json:
        return {"name": name, "kind": "Agent", "command": ["agent"], "runners": 2, "template": ONE}

    tenancy.quota("5", {"kubernetes.io/hostname": "fake-1"})
    tenancy.queue()
    tenancy.submit("a", 1, environments=[shell("shell")])
    tenancy.until_stalled("a", "QuotaTooSmall")
    assert runners() == []
    tenancy.quota("5250m", {"kubernetes.io/hostname": "fake-1"})  # the gateway asks for a quarter
    tenancy.until_runs("a", "rollout-0-1")
    (base,) = tenancy.workloads().values()
    given = {one["name"]: one for one in base["status"]["admission"]["podSetAssignments"]}
    assert (given["environment-shell"]["count"], given["environment-shell"]["resourceUsage"]["cpu"]) == (2, "2")
    ready = [{"name": "shell", "runners": 2, "ready": 2}]
    tenancy.until("both runners are ready", lambda: tenancy.of("a")["status"]["environments"] == ready)
    assert [pod["spec"]["nodeName"] for pod in runners()] == ["fake-1", "fake-1"]

    tenancy.suspend("a", True)
    tenancy.until("all is given back", lambda: not (tenancy.live("a") or tenancy.workloads() or runners()))
    tenancy.submit("b", 1, environments=[shell(f"e{index}") for index in range(6)])
    tenancy.until_stalled("b", "TooManyEnvironments")
    assert tenancy.workloads() == {}


@pytest.mark.slow  # devices without Kueue are in tests/integration/operator/test_devices.py
def test_claimed_devices_are_counted_where_kueue_is_told_to(tenancy: Tenancy) -> None:
    """By the claims of the pods, and by an extended resource that a DeviceClass serves: one quota for both."""
    fleet = Fleet(tenancy.nodes.server.client(), f"gpu-{uuid.uuid4().hex[:6]}", tenancy.kubectl.namespace)
    resource = f"example.com/{fleet.name}"
    fleet.make_class(resource)
    for node in ("fake-1", "fake-2"):
        fleet.publish(node, 4)
    claims: Json = {"accelerator": {"deviceClass": fleet.name}, "rollout": {"acceleratorsPerMachine": 2}}
    plain: Json = {"accelerator": {"resource": resource}, "rollout": {"acceleratorsPerMachine": 2}}
    tenancy.manager.stop()
    tenancy.manager.start({"devices": [fleet.name]})
    try:
        tenancy.quota("20", devices="4")
        tenancy.queue()
        tenancy.submit("a", 3, **claims)
        tenancy.until("four devices are given", lambda: len(tenancy.holding()) == 2)
        (more,) = tenancy.holding() - {"a-base"}  # whichever Kueue has looked at first
        tenancy.until_runs("a", "rollout-0-1", f"{more.removeprefix('a-')}-1")
        given = tenancy.workloads()["a-base"]["status"]["admission"]["podSetAssignments"]
        assert {one["name"]: one["resourceUsage"].get("devices") for one in given} == {
            "coordinator": None,
            "trainer": None,
            "rollout": "2",
        }
        tenancy.until_condition("a", "Admitted", "True/PartlyAdmitted")
        why = "insufficient unused quota for devices"
        tenancy.until("the missing quota is told", lambda: why in json.dumps(tenancy.of("a")))
        assert set(fleet.claims()) == {"a-rollout-0-1", f"{more}-1"}

        tenancy.submit("b", 1, **plain)
        tenancy.until_runs("b", "rollout-0-1")
        tenancy.until_runs("a", "rollout-0-1")
        tenancy.until("both bases hold quota", lambda: tenancy.holding() == {"a-base", "b-base"})
        # Claims go with their pods, by a controller.
        left = {"a-rollout-0-1", "b-rollout-0-1"}
        tenancy.until("the claim of the evicted machine is gone", lambda: set(fleet.claims()) == left)

        tenancy.submit("c", 1, accelerator={"claimTemplate": "absent"}, rollout={"acceleratorsPerMachine": 1})
        tenancy.until_stalled("c", "ClaimTemplateNotFound")
        assert "c-base" not in tenancy.workloads()
        fleet.make_template(tenancy.kubectl.namespace, "absent", 1, mode="All")
        job = tenancy.until_stalled("c", "ClaimNotCounted")
        assert "use spec.accelerator.deviceClass" in json.dumps(job)

        tenancy.submit("d", 1, accelerator={"deviceClass": "unmapped"}, rollout={"acceleratorsPerMachine": 1})
        job = tenancy.until_stalled("d", "DeviceClassNotMapped")
        assert "name the class in resources.deviceClassMappings of Kueue's configuration" in json.dumps(job)
        assert tenancy.live("c") == tenancy.live("d") == set()
    finally:
        fleet.clear()
        tenancy.manager.stop()
        tenancy.manager.start()


def test_a_flavor_that_no_node_has_is_told(tenancy: Tenancy) -> None:
    tenancy.quota("8", {"not-there/label": "this"})
    tenancy.queue()
    tenancy.submit("a", 1)
    tenancy.until_stalled("a", "Unschedulable")
    pod = json.loads(tenancy.kubectl("get", "pod", "a-trainer-0-1", "-o", "json"))
    assert pod["spec"]["nodeSelector"] == {"not-there/label": "this"}


@pytest.mark.slow
def test_a_job_survives_an_upgrade_of_kueue_and_stops_at_its_removal(tenancy: Tenancy) -> None:
    manager = tenancy.manager
    tenancy.quota("8")
    tenancy.queue()
    tenancy.submit("a", 2)
    tenancy.until_runs("a", "rollout-0-1", "rollout-1-1")
    manager.stop()
    try:
        tenancy.fail("a-rollout-1-1")
        tenancy.until_runs("a", "rollout-0-1", "rollout-1-1", "rollout-1-2")
    finally:
        manager.start()
    try:
        manager.remove()
        tenancy.until_stalled("a", "KueueNotInstalled")
        tenancy.until("no pods", lambda: not tenancy.live("a"))
        tenancy.submit("b", 1)
        job = tenancy.until_stalled("b", "KueueNotInstalled")
        assert "install Kueue, or remove the label to run without a quota" in json.dumps(job)
        assert tenancy.live("b") == set()
    finally:
        manager.install()
    tenancy.quota("8")
    tenancy.queue()
    tenancy.until_runs("a", "rollout-0-2", "rollout-1-3", base=2)
    tenancy.until_runs("b", "rollout-0-1")
