"""Pods: how a fault gets into the pods of a job, and what is known of it afterwards."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from hack.chaos.job import JOB
from hack.chaos.observation import Observation

from .in_pod import ACTOR

SYSTEM_NAMESPACE = "rljob-system"
LARGEST_FILE = 64 << 10
"""File size limit in bytes of processes whose disk, or shared memory, is said to be full."""
Undo = Callable[[], None]


class NotPossible(Exception):
    """The fault is not possible now; the message gives the reason."""


@dataclass(frozen=True)
class Injected:
    """A fault.

    `at`: its time, by the clock of all nodes. `undo` ends it and is harmless if there is nothing to undo. `unproved`
    returns what a job that has recovered does not show of it.
    """

    at: float
    undo: Undo
    unproved: Callable[[], list[str]] = list


def nothing() -> None:
    pass


class Pods:
    """Pods of one job on the cluster of that name."""

    def __init__(self, cluster: str, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def kubectl(self, *args: str, system: bool = False, check: bool = True) -> str:
        """Run kubectl in the job's namespace, or in the operator's. Raises `NotPossible` with its error."""
        namespace = SYSTEM_NAMESPACE if system else self.namespace
        try:
            done = subprocess.run(["kubectl", "-n", namespace, *args], capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            raise NotPossible(f"kubectl {args[0]} did not return") from None
        if check and done.returncode:
            raise NotPossible(f"kubectl {args[0]}: {done.stderr.strip()}")
        return done.stdout + ("" if check else done.stderr)

    def _patch(self, spec: dict[str, object]) -> None:
        """Change fields of the job's spec."""
        self.kubectl("patch", "rljob", JOB, "--type=merge", "-p", json.dumps({"spec": spec}))

    def _signal(self, seen: Observation, machine: str, part: str, number: int) -> float:
        return self._exec(seen, machine, ACTOR, part, str(int(number)), machine)

    def _exec(self, seen: Observation, machine: str, script: str, *arguments: str) -> float:
        """Run a script in a machine's pod; return the time of its work.

        Raises `NotPossible` if it found nothing to do.
        """
        pod = seen.pod_of(machine)
        if pod is None:
            raise NotPossible(f"{machine} has no pod")
        return self._exec_in(pod.name, script, *arguments)

    def _exec_in(self, pod: str, script: str, *arguments: str) -> float:
        """Run a script in a pod; return the time of its work. Raises `NotPossible` if it found nothing to do."""
        inside = ("exec", pod, "-c", "main", "--", "python", "-c", script, *arguments)
        answer = self.kubectl(*inside, check=False).strip().splitlines()
        found = [json.loads(line) for line in answer if line.startswith("{")]
        if not found or not found[0]["pids"]:
            raise NotPossible(f"{pod}: {answer[-1] if answer else 'no answer'}")
        return float(found[0]["at"])
