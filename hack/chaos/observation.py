"""Observation: the state of a job in the API objects at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

JOB = "rljob.dev/job"
MACHINE = "rljob.dev/machine"
ROLE = "rljob.dev/role"
INCARNATION = "rljob.dev/incarnation"


@dataclass(frozen=True)
class Pod:
    """A pod of the job. `live`: it has neither ended nor been deleted."""

    name: str
    machine: str
    role: str
    incarnation: int
    node: str | None
    ready: bool
    live: bool


@dataclass(frozen=True)
class Observation:
    """State of a job.

    `at`: seconds of this machine's clock. `unready`: nodes that Kubernetes holds to be away or evicts from. `chain`:
    the relays in the coordinator's report. `generating`: machines whose engines have made tokens since they joined.
    `suspects`: machine and incarnation. `checkpoint`: round of the newest one. `switches`: of the last round, that
    reached their size. `refused`: those that ended in the size before. `moved_bytes`: of KV in all of them.
    """

    at: float
    pods: tuple[Pod, ...] = ()
    unready: frozenset[str] = frozenset()
    phase: str = ""
    stage: str = ""
    round: int = 0
    term: int = 0
    version: int = 0
    desired: int = 0
    chain: tuple[str, ...] = ()
    generating: tuple[str, ...] = ()
    suspects: frozenset[tuple[str, int]] = frozenset()
    problems: frozenset[str] = frozenset()
    checkpoint: int = 0
    switches: int = 0
    refused: int = 0
    moved_bytes: int = 0
    paused: bool = False
    complete: bool = False
    failed: str = ""

    def pod_of(self, machine: str) -> Pod | None:
        """Return the live pod of the machine."""
        found = [pod for pod in self.pods if pod.machine == machine and pod.live]
        return max(found, key=lambda pod: pod.incarnation, default=None)

    def of_role(self, role: str) -> tuple[Pod, ...]:
        """Return the live pods of a role, by machine."""
        found = {pod.machine for pod in self.pods if pod.role == role and pod.live}
        return tuple(pod for pod in map(self.pod_of, sorted(found)) if pod is not None)

    def incarnation(self, machine: str) -> int:
        """Return the highest incarnation of the machine's pods, live or not; 0 for none."""
        return max((pod.incarnation for pod in self.pods if pod.machine == machine), default=0)

    def troubled(self, machine: str) -> bool:
        """Return whether any object shows a problem of the machine."""
        pod = self.pod_of(machine)
        if pod is None or not pod.ready or machine in {suspect for suspect, _ in self.suspects}:
            return True
        return pod.role == "rollout" and machine not in self.chain

    @property
    def healthy(self) -> bool:
        """True if every machine is present and ready, the chain has all of them, and none is suspected."""
        rollout = self.of_role("rollout")
        return (
            0 < self.desired == len(rollout) == len(self.chain)
            and bool(self.of_role("trainer") and self.of_role("coordinator"))
            and not self.paused
            and not any(self.troubled(pod.machine) for role in ROLES for pod in self.of_role(role))
        )


ROLES = ("coordinator", "trainer", "rollout")


def observe(
    at: float, job: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]] = ()
) -> Observation:
    """Make an observation from the API server's objects; missing fields stay empty."""
    status = job.get("status") or {}
    runtime = status.get("runtime") or {}
    made = (runtime.get("lastRound") or {}).get("layoutSwitches") or {}
    conditions = {one["type"]: one for one in status.get("conditions", []) if one["status"] == "True"}
    return Observation(
        at=at,
        pods=tuple(sorted(map(_pod, pods), key=lambda pod: (pod.machine, pod.incarnation))),
        unready=frozenset(node["metadata"]["name"] for node in nodes if not _settled(node)),
        phase=status.get("phase", ""),
        stage=runtime.get("stage", ""),
        round=int(runtime.get("round") or 0),
        term=int(runtime.get("term") or 0),
        version=int(runtime.get("weightVersion") or 0),
        desired=int((status.get("rollout") or {}).get("desired") or 0),
        chain=tuple((runtime.get("relay") or {}).get("chain") or ()),
        generating=tuple(runtime.get("generating") or ()),
        suspects=frozenset((one["machine"], int(one["incarnation"])) for one in runtime.get("suspects") or ()),
        problems=frozenset(one["reason"] for one in runtime.get("warnings") or ()),
        checkpoint=int((runtime.get("checkpoint") or {}).get("round") or 0),
        switches=int(made.get("made") or 0),
        refused=sum(one["reachedSize"] == one["fromSize"] for one in made.get("switches") or ()),
        moved_bytes=int(made.get("kvBytes") or 0),
        paused=bool((status.get("replacements") or {}).get("pausedUntil")),
        complete="Complete" in conditions,
        failed=conditions["Failed"].get("message", "Failed") if "Failed" in conditions else "",
    )


def _settled(node: Mapping[str, Any]) -> bool:
    """Return whether the node is ready and none of its pods is about to be evicted."""
    conditions = {one["type"]: one["status"] for one in (node.get("status") or {}).get("conditions") or ()}
    taints = (node.get("spec") or {}).get("taints") or ()
    return conditions.get("Ready") == "True" and not any(taint["effect"] == "NoExecute" for taint in taints)


def _pod(pod: Mapping[str, Any]) -> Pod:
    labels, status = pod["metadata"].get("labels") or {}, pod.get("status") or {}
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    return Pod(
        name=pod["metadata"]["name"],
        machine=labels.get(MACHINE, ""),
        role=labels.get(ROLE, ""),
        incarnation=int(labels.get(INCARNATION) or 0),
        node=(pod.get("spec") or {}).get("nodeName"),
        ready=conditions.get("Ready") == "True",
        live="deletionTimestamp" not in pod["metadata"] and status.get("phase") not in ("Succeeded", "Failed"),
    )
