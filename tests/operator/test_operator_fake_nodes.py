"""The operator as a process, beside the real scheduler and the real controllers. kwok stands in for the kubelets, and
`stand_in_coordinator.py` for the coordinator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hack.cluster import process
from hack.cluster.kwok import FakeNodes
from operator_kit import condition, five_minutes, manifest
from stand_in_coordinator import StandInCoordinators

from established import until_established

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/cluster"))

from cluster_kit import Kubectl  # noqa: E402

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

JOB = "demo"
RUNNING = "True/RoundsProgressing"
KINDS = "pods,services,serviceaccounts,roles,rolebindings,leases,networkpolicies,poddisruptionbudgets,secrets"


class OperatorProcess:
    """`python -m rljob_operator`, started and killed at will."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path) -> None:
        self._log = log
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": namespace, "POD_NAME": "operator-0"}
        self._env.pop("KUBERNETES_SERVICE_HOST", None)
        self._namespace = ["-n", namespace]
        self._flags = ["--health-port", str(process.free_ports(1)[0]), "--no-leader-elect"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, everywhere: bool = False) -> None:
        """``everywhere``: it serves all namespaces, and so may watch nodes."""
        command = [sys.executable, "-m", "rljob_operator", *self._flags, *([] if everywhere else self._namespace)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL: it says goodbye to nobody."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)

    def said(self) -> str:
        return self._log.read_text()[-3000:] if self._log.exists() else ""


class Life:
    """One namespace, its operator, and what a person does there."""

    def __init__(self, kubectl: Kubectl, operator: OperatorProcess, nodes: FakeNodes) -> None:
        self.kubectl = kubectl
        self.operator = operator
        self.nodes = nodes

    def apply(self, **changes: Any) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest(JOB, self.kubectl.namespace, **changes)))

    def job(self) -> dict[str, Any]:
        return self.kubectl.get("rljob", JOB)

    def pods(self) -> dict[str, str]:
        """uid of each pod that lives, by name."""
        found = json.loads(self.kubectl("get", "pods", "-l", f"rljob.dev/job={JOB}", "-o", "json"))["items"]
        live = [p for p in found if "deletionTimestamp" not in p["metadata"] and p["status"].get("phase") != "Failed"]
        return {p["metadata"]["name"]: p["metadata"]["uid"] for p in live}

    def until(self, what: str, check: Callable[[], Any], seconds: float = 180.0) -> None:
        end = time.monotonic() + seconds
        while not check():
            if time.monotonic() > end:
                story = self.kubectl("describe", "rljob,pods", check=False)
                raise AssertionError(f"not in {seconds:.0f} s: {what}\n{story[-6000:]}\n{self.operator.said()}")
            time.sleep(0.3)

    def until_ready(self, machines: int) -> None:
        def ready() -> bool:
            job = self.job()
            status = job.get("status") or {}
            rollout = status.get("rollout") or {}
            if condition(job, "Ready") != RUNNING or not rollout.get("ready") == machines == rollout["desired"]:
                return False
            # Pods are made before the status that counts them: until then it tells of the ones before.
            return {f"{JOB}-{m['machine']}-{m['incarnation']}" for m in status["members"]} == set(self.pods())

        self.until(f"ready with {machines} rollout machines", ready)

    def until_machines(self, *incarnations: str) -> None:
        """Exactly these pods, named as `rollout-0-1`."""
        names = {f"{JOB}-{incarnation}" for incarnation in incarnations}
        self.until(f"pods {sorted(names)}", lambda: set(self.pods()) == names)

    def fail(self, pod: str) -> None:
        """The pod's program is killed, as by a segmentation fault or the kernel's want of memory."""
        self.nodes.fail_pod(self.kubectl.namespace, pod, exit_code=137)

    def events(self) -> set[str]:
        lines = self.kubectl("get", "events", "-o", "jsonpath={range .items[*]}{.involvedObject.kind} {.reason}\n{end}")
        return {line.split()[1] for line in lines.splitlines() if line.startswith("RLJob ")}

    def until_events(self, *reasons: str) -> None:
        """They follow the status that they tell of."""
        self.until(f"events {sorted(reasons)}", lambda: set(reasons) <= self.events())


@pytest.fixture(scope="module")
def with_crd(fake_nodes: FakeNodes) -> FakeNodes:
    kubectl = Kubectl(fake_nodes.server.kubeconfig, "default")
    kubectl("apply", "--server-side", "-f", str(ROOT / "crds/rljob.yaml"))
    until_established(kubectl)
    return fake_nodes


@pytest.fixture
def life(with_crd: FakeNodes, tmp_path: Path) -> Iterator[Life]:
    kubeconfig = with_crd.server.kubeconfig
    kubectl = Kubectl(kubeconfig, f"t-{uuid.uuid4().hex[:8]}")
    kubectl("create", "namespace", kubectl.namespace)
    operator = OperatorProcess(kubeconfig, kubectl.namespace, tmp_path / "operator.log")
    operator.start()
    with StandInCoordinators(kubeconfig, kubectl.namespace) as coordinators:
        yield Life(kubectl, operator, with_crd)
    operator.stop()
    assert coordinators.trouble == []
    kubectl("delete", "namespace", kubectl.namespace, "--wait=false", "--ignore-not-found")


def test_apply_describe_scale_and_delete(life: Life) -> None:
    life.apply()
    life.until_ready(2)
    life.until_events("Running")
    told = life.kubectl("describe", "rljob", JOB)
    for words in ("RoundsProgressing", "ChainFormed", "all pods are ready", "rollout-1"):
        assert words in told
    life.kubectl("scale", "rljob", JOB, "--replicas=3")
    life.until_ready(3)
    life.kubectl("scale", "rljob", JOB, "--replicas=1")
    life.until_machines("coordinator-0-1", "trainer-0-1", "rollout-0-1")
    life.until_ready(1)
    life.until_events("RolloutScaledUp", "RolloutScaledDown", "RelayRebuilt")
    assert life.job()["status"]["replacements"]["total"] == 0
    life.kubectl("delete", "rljob", JOB, "--timeout=60s")
    life.until("everything of the job is gone", lambda: JOB not in life.kubectl("get", KINDS, "-o", "name"))


def test_pods_die_with_and_without_an_operator(life: Life) -> None:
    life.apply()
    life.until_ready(2)
    life.fail(f"{JOB}-rollout-1-1")
    life.until_machines("coordinator-0-1", "trainer-0-1", "rollout-0-1", "rollout-1-2")
    life.kubectl("delete", "pod", f"{JOB}-coordinator-0-1", "--grace-period=0", "--force", "--wait=false")
    life.until_machines("coordinator-0-2", "trainer-0-1", "rollout-0-1", "rollout-1-2")
    life.until_ready(2)

    life.operator.kill()
    life.fail(f"{JOB}-trainer-0-1")
    life.kubectl("delete", "pod", f"{JOB}-rollout-0-1", "--now", "--wait=true")
    life.until_machines("coordinator-0-2", "rollout-1-2")
    before, reached = life.pods(), life.job()["status"]["runtime"]["round"]
    life.until("the coordinator goes on alone", lambda: life.job()["status"]["runtime"]["round"] > reached)
    life.operator.start()
    life.until_machines("coordinator-0-2", "trainer-0-2", "rollout-0-2", "rollout-1-2")
    life.until_ready(2)
    after = life.pods()
    assert {name: uid for name, uid in after.items() if name in before} == before
    status = life.job()["status"]
    assert status["replacements"]["total"] == 4
    assert status["replacements"]["byMachine"] == {"rollout-1": 1, "trainer-0": 1}  # deletions cost no budget
    assert len(status["relay"]["chain"]) == 2
    life.until_events("MachineLost", "MachineReplaced")


def test_suspend_resume_and_edits(life: Life) -> None:
    life.apply()
    life.until_ready(2)
    pods = life.pods()

    with pytest.raises(AssertionError, match=r"data\.seed is immutable; make a new RLJob"):
        life.apply(data={"seed": 7})
    life.operator.kill()
    life.operator.start()
    life.fail(f"{JOB}-rollout-0-1")
    life.until_machines("coordinator-0-1", "trainer-0-1", "rollout-0-2", "rollout-1-1")
    life.until_ready(2)
    kept = {name: uid for name, uid in life.pods().items() if "rollout-0" not in name}
    assert kept.items() <= pods.items()

    life.apply(suspend=True)
    life.until("suspended", lambda: condition(life.job(), "Suspended") == "True/SuspendedByUser")
    assert life.pods() == {}
    reached = life.job()["status"]["runtime"]["round"]
    life.apply(algorithm={"learningRate": 2e-5})
    life.until_machines("coordinator-0-2", "trainer-0-2", "rollout-0-3", "rollout-1-2")
    life.until_ready(2)
    life.until("it goes on where it was", lambda: life.job()["status"]["runtime"]["round"] > reached)
    assert '"learningRate":2e-05' in life.job()["status"]["accepted"]["spec"]
    life.until_events("Suspended", "Resumed")


def test_a_namespace_goes_while_no_operator_runs(life: Life) -> None:
    life.apply()
    life.until_ready(2)
    life.operator.kill()
    life.kubectl("delete", "namespace", life.kubectl.namespace, "--timeout=120s")
    assert "NotFound" in life.kubectl("get", "namespace", life.kubectl.namespace, check=False)


def test_a_node_falls_silent(life: Life) -> None:
    """Its machine moves to another node; the lost pod lasts until its node is back, and hinders nobody."""
    life.operator.kill()
    life.operator.start(everywhere=True)
    life.apply(failurePolicy={"nodeFailure": {"graceSeconds": 1}}, rollout={"template": five_minutes()})
    life.until_ready(2)
    lost = f"{JOB}-rollout-1-1"
    node = life.kubectl.get("pod", lost)["spec"]["nodeName"]
    others = {name for name in life.pods() if life.kubectl.get("pod", name)["spec"]["nodeName"] != node}
    life.nodes.hang(node)
    try:
        life.until("the replacement", lambda: f"{JOB}-rollout-1-2" in life.pods())
        life.until_ready(2)
        assert life.kubectl.get("pod", f"{JOB}-rollout-1-2")["spec"]["nodeName"] != node
        assert "deletionTimestamp" in life.kubectl.get("pod", lost)["metadata"]
        assert others <= set(life.pods())
        memory = life.job()["status"]["replacements"]
        assert [avoided["name"] for avoided in memory["avoidedNodes"]] == [node]
        assert memory["backoff"]["rollout-1"]["reason"] == "NodeNotReady"
    finally:
        life.nodes.recover(node)
    life.until("the lost pod's end", lambda: not life.kubectl("get", "pod", lost, "--ignore-not-found"))
    life.until_events("MachineLost", "NodeAvoided", "MachineReplaced")
