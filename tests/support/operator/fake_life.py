"""What tests of the operator on nodes that kwok keeps share: the operator as a process, and one job's life."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hack.local_cluster import process
from hack.local_cluster.private.apiserver import Server
from hack.local_cluster.private.kwok import FakeNodes
from tests.support.crd import until_established
from tests.support.local_cluster import Kubectl
from tests.support.operator.harness import condition, manifest
from tests.support.operator.stand_in_coordinator import StandInCoordinators
from tests.support.paths import ROOT

JOB = "demo"
RUNNING = "True/RoundsProgressing"


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
        """SIGKILL: it notifies no other process."""
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
        self._api = nodes.server.client()

    def of(self, name: str) -> dict[str, Any]:
        """A job as it is now. What a test asks again and again costs no process."""
        found: dict[str, Any] = self._api.get(f"{self._in_namespace('apis/rljob.dev/v1alpha1')}/rljobs/{name}")
        return found

    def items(self, plural: str, selector: str = "", api: str = "api/v1") -> list[dict[str, Any]]:
        """Objects of a kind that have these labels."""
        query = f"?labelSelector={urllib.parse.quote(selector)}" if selector else ""
        found: list[dict[str, Any]] = self._api.get(f"{self._in_namespace(api)}/{plural}{query}")["items"]
        return found

    def _in_namespace(self, api: str) -> str:
        return f"/{api}/namespaces/{self.kubectl.namespace}"

    def apply(self, **changes: Any) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest(JOB, self.kubectl.namespace, **changes)))

    def job(self) -> dict[str, Any]:
        return self.of(JOB)

    def pods(self) -> dict[str, str]:
        """uid of each pod that lives, by name."""
        found = self.items("pods", f"rljob.dev/job={JOB}")
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
        return {event["reason"] for event in self.items("events") if event["involvedObject"]["kind"] == "RLJob"}

    def until_events(self, *reasons: str) -> None:
        """They follow the status that they tell of."""
        self.until(f"events {sorted(reasons)}", lambda: set(reasons) <= self.events())


def install_crd(server: Server) -> None:
    """Apply the CRD, and wait until the server answers for it."""
    kubectl = Kubectl(server.kubeconfig, "default")
    kubectl("apply", "--server-side", "-f", str(ROOT / "crds/rljob.yaml"))
    until_established(kubectl)


@contextlib.contextmanager
def own_life(nodes: FakeNodes, log: Path, *, everywhere: bool = False) -> Iterator[Life]:
    """A namespace of its own with an operator and coordinators; all of it ends with the context. `everywhere`: see
    `OperatorProcess.start`."""
    kubeconfig = nodes.server.kubeconfig
    kubectl = Kubectl(kubeconfig, f"t-{uuid.uuid4().hex[:8]}")
    kubectl("create", "namespace", kubectl.namespace)
    operator = OperatorProcess(kubeconfig, kubectl.namespace, log)
    operator.start(everywhere=everywhere)
    with StandInCoordinators(kubeconfig, kubectl.namespace) as coordinators:
        yield Life(kubectl, operator, nodes)
    operator.stop()
    assert coordinators.stall == []
    kubectl("delete", "namespace", kubectl.namespace, "--wait=false", "--ignore-not-found")
