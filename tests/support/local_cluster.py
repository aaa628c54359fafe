"""What the tests on running clusters share: kubectl in a namespace, waiting, and snapshots of the machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.local_cluster.programs import tools
from hack.local_cluster.settings import RUNTIME_IMAGE


@dataclass(frozen=True)
class Kubectl:
    kubeconfig: Path
    namespace: str

    def __call__(self, *args: str, stdin: str | None = None, check: bool = True) -> str:
        command = [str(tools.folder() / "kubectl"), f"--kubeconfig={self.kubeconfig}", "-n", self.namespace]
        command += [f"--cache-dir={self.kubeconfig.parent / 'kubecache'}", *args]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}"
            return done.stdout
        return done.stdout + done.stderr

    def apply(self, *objects: dict[str, Any]) -> None:
        self("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("get", kind, name, "-o", "json"))
        return found

    def condition(self, kind: str, name: str, wanted: str) -> str:
        """The condition's status; empty when the object or the condition is not there."""
        path = f'{{.status.conditions[?(@.type=="{wanted}")].status}}'
        return self("get", kind, name, "--ignore-not-found", "-o", f"jsonpath={path}").strip()

    def phase(self, pod: str) -> str:
        return self("get", "pod", pod, "--ignore-not-found", "-o", "jsonpath={.status.phase}").strip()


@contextlib.contextmanager
def own_namespace(kubeconfig: Path) -> Iterator[Kubectl]:
    """kubectl in a namespace of its own, which goes with the context."""
    made = Kubectl(kubeconfig, f"test-{uuid.uuid4().hex[:8]}")
    made("create", "namespace", made.namespace)
    wait_for("service account", lambda: made("get", "sa", "default", "--ignore-not-found"))
    yield made
    made("delete", "namespace", made.namespace, "--wait=false")


def wait_for(what: str, check: Callable[[], Any], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"no {what} within {seconds:.0f} s"
        time.sleep(0.2)


def pod(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    """A pod as the project's own: another user than root, read-only root file system, no capabilities."""
    container = {
        "name": "main",
        "image": RUNTIME_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **spec.pop("container", {}),
    }
    user = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": user,
            "containers": [container],
            **spec,
        },
    }


def traces(*marks: str) -> set[str]:
    """Everything on this machine that carries one of ``marks`` in its name: links, routes, mounts, control groups,
    and processes by command line."""
    found = [f"link {p.name}" for p in Path("/sys/class/net").iterdir()]
    routes = subprocess.run(["ip", "route", "show", "table", "all"], capture_output=True, text=True, check=True)
    found += [f"route {line}" for line in routes.stdout.splitlines()]
    found += [f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found += [f"group {p}" for p in Path("/sys/fs/cgroup").glob("*/*")]
    found += [f"group {p}" for p in Path("/sys/fs/cgroup").glob("*")]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(f"process {entry.read_bytes().replace(bytes(1), b' ').decode(errors='replace')}")
        except OSError:  # it has ended meanwhile
            continue
    return {line for line in found if any(mark in line for mark in marks)}
