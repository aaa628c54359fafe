"""kubectl as the end-to-end tests use it, and what they read from a job."""

from __future__ import annotations

import copy
import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from hack.chaos.faults.in_pod import TEXT
from rljob_api.constants import HEALTH_PORT

SYSTEM_NAMESPACE = "rljob-system"
POLL_SECONDS = 1.0
"""Each look starts kubectl, which takes a tenth of a processor that the job under test needs."""


class Kubectl:
    """kubectl in one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def __call__(self, *args: str, check: bool = True, stdin: str | None = None) -> str:
        done = subprocess.run(
            ["kubectl", "-n", self.namespace, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(args)}: {done.stderr}")
        return done.stdout + ("" if check else done.stderr)

    def get(self, *args: str) -> Any:
        return json.loads(self("get", *args, "-o", "json"))

    def apply(self, *documents: dict[str, Any]) -> None:
        self("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get("rljob", name)
        return found

    def pods(self, name: str, role: str | None = None) -> list[dict[str, Any]]:
        """Pods of the job that are not being deleted."""
        selector = f"rljob.dev/job={name}" + (f",rljob.dev/role={role}" if role else "")
        found: list[dict[str, Any]] = self.get("pods", "-l", selector)["items"]
        return [p for p in found if "deletionTimestamp" not in p["metadata"]]

    def nodes(self) -> list[str]:
        """Names of the cluster's nodes."""
        return sorted(node["metadata"]["name"] for node in self.get("nodes")["items"])

    def wait(self, what: str, probe: Callable[[], Any], seconds: float = 400.0) -> Any:
        """The first truthy answer of `probe`, or a failure that shows how things stand."""
        end = time.monotonic() + seconds
        trouble = ""
        while time.monotonic() < end:
            try:
                if answer := probe():
                    return answer
            except AssertionError as error:  # the object is not there yet, or the API server is busy
                trouble = str(error)
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"not seen in {seconds:.0f} s: {what} ({trouble})\n{self.story()}")

    def rounds(self, name: str) -> int:
        """Rounds that the job has finished, as its coordinator reports."""
        return int(runtime(self.job(name)).get("round") or 0)

    def metrics(self, name: str) -> list[Sample]:
        """Metrics of the job's coordinator."""
        (coordinator,) = self.pods(name, "coordinator")
        pod = f"{coordinator['metadata']['name']}:{HEALTH_PORT}"
        text = self("get", "--raw", f"/api/v1/namespaces/{self.namespace}/pods/{pod}/proxy/metrics")
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def reaches(self, pod: str, address: str, port: int) -> bool:
        """Whether this pod gets a connection. Anything but a refusal and a time-out is an error."""
        said = self("exec", pod, "--", "python", "-c", _CALL, address, str(port), check=False)
        assert said.startswith("open") or "timed out" in said or "Connection refused" in said, said
        return said.startswith("open")

    def actors(self, pod: str) -> frozenset[tuple[int, int]]:
        """Process id and start time of every Ray actor in a pod: the same pair is the same process."""
        return frozenset((pid, start) for pid, start, _ in self._actors(pod))

    def niceness(self, pod: str) -> list[int]:
        """Of every Ray actor in a pod, the most important one first."""
        return sorted(nice for _, _, nice in self._actors(pod))

    def _actors(self, pod: str) -> list[tuple[int, int, int]]:
        return [tuple(one) for one in json.loads(self("exec", pod, "--", "python", "-c", _ACTORS))]

    def story(self) -> str:
        """What a person would look at."""
        parts = [
            self("describe", "rljobs", check=False),
            self("get", "pods", "-o", "wide", check=False),
            self("logs", "-l", "rljob.dev/role=coordinator", "--tail=30", check=False),
            Kubectl(SYSTEM_NAMESPACE)("logs", "-l", "app.kubernetes.io/name=rljob", "--tail=30", check=False),
        ]
        return "\n".join(parts)


_CALL = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 4).close(); print('open')"

# Ray titles the process of an actor `ray::<class>`; fields 19 and 22 of /proc/<pid>/stat are its niceness and its start
# in ticks since boot.
_ACTORS = f"""{TEXT}
found = []
for process in pathlib.Path("/proc").glob("[0-9]*"):
    title, stat = text(process / "cmdline"), text(process / "stat")
    if stat and title.startswith("ray::ActorHost"):
        fields = stat.rpartition(")")[2].split()
        found.append((int(process.name), int(fields[19]), int(fields[16])))
print(json.dumps(found))
"""


def variant(job: dict[str, Any], name: str, **spec: Any) -> dict[str, Any]:
    """The job under another name, with top-level fields of its spec replaced."""
    made = copy.deepcopy(job)
    made["metadata"] = {"name": name}
    made["spec"] |= spec
    return made


def claim(name: str) -> dict[str, Any]:
    """A claim that every pod may mount, by the cluster's default class."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def condition(job: dict[str, Any], kind: str) -> dict[str, Any]:
    """A condition by type, `{}` when it is not there."""
    return next((c for c in (job.get("status") or {}).get("conditions", []) if c["type"] == kind), {})


def is_true(job: dict[str, Any], kind: str) -> bool:
    return condition(job, kind).get("status") == "True"


def runtime(job: dict[str, Any]) -> dict[str, Any]:
    return (job.get("status") or {}).get("runtime") or {}
