"""Kueue objects: a job's Workloads, what was assigned to them, and what else admission depends on, as values.

A job that names a queue requests its quota in pieces. The base Workload covers the coordinator, the trainer and the
fewest rollout machines. Each rollout machine above those has a Workload of lower priority, so Kueue can take one
machine of a running job. Parsing is total: odd objects become odd values, never exceptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rljob_api.constants import GROUP, ROLE_ROLLOUT, machine_name
from rljob_api.spec import RLJob
from rljob_kube.manifests.objects import Condition, PodSetUpdate
from rljob_kube.manifests.pods import Toleration
from rljob_kube.resources import Json
from rljob_operator.policies.base.condition_reason import ConditionReason

API = "kueue.x-k8s.io"
API_VERSION = f"{API}/v1beta2"
QUEUE = f"{API}/queue-name"
"""Label of a job: its LocalQueue."""
PRIORITY_CLASS = f"{API}/priority-class"
"""Label of a job: its WorkloadPriorityClass."""
ASKS = f"{GROUP}/asks"
"""Annotation of a Workload: a hash of the resources that its pod sets request."""
SELECTS = f"{GROUP}/selects"
"""Annotation of a Workload: a hash of the node selection of its pod sets."""
BASE = "base"
_LONGEST_SET = 63

ADMITTED, QUOTA_RESERVED, EVICTED, REQUEUED = "Admitted", "QuotaReserved", "Evicted", "Requeued"
FINISHED, PODS_READY = "Finished", "PodsReady"


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor: the nodes that its quota covers."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True)
class Assignment:
    """What Kueue assigned to one pod set."""

    flavors: tuple[str, ...] = ()
    updates: tuple[PodSetUpdate, ...] = ()
    """Additions to its pods by admission checks."""
    topology: bool = False
    """Kueue chose single nodes too."""


@dataclass(frozen=True)
class Workload:
    """One request for quota."""

    name: str
    uid: str = ""
    version: str = ""
    owners: tuple[str, ...] = ()
    queue: str = ""
    cluster_queue: str = ""
    asks: str = ""
    selects: str = ""
    priority: int = 0
    active: bool = True
    deleting: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    """Pods of each pod set."""
    reclaimed: Mapping[str, int] = field(default_factory=dict)
    """Pods of each pod set whose quota was returned."""
    reserved: bool = False
    """It holds quota."""
    assigned: Mapping[str, Assignment] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()

    @property
    def admitted(self) -> bool:
        """Tell whether its pods may run."""
        return self.reserved and self.active and not self.deleting and self.holds(ADMITTED) and not self._ended

    @property
    def evicted(self) -> bool:
        """Tell whether it must return its quota, or has returned it."""
        return self.holds(EVICTED)

    @property
    def _ended(self) -> bool:
        return self.evicted or self.holds(FINISHED)

    @property
    def why(self) -> ConditionReason:
        """Return Kueue's reason why it is not admitted."""
        for kind, status in ((EVICTED, "True"), (QUOTA_RESERVED, "False"), (ADMITTED, "False")):
            found = self.condition(kind)
            if found is not None and found.get("status") == status and (kind != EVICTED or self.reserved):
                return ConditionReason(str(found.get("reason", "")), str(found.get("message", "")))
        return ConditionReason("Pending", "Kueue has not considered it yet")

    def condition(self, kind: str) -> Condition | None:
        return next((one for one in self.conditions if one.get("type") == kind), None)

    def holds(self, kind: str) -> bool:
        """Tell whether a condition is True."""
        found = self.condition(kind)
        return found is not None and found.get("status") == "True"

    def slots(self, pod_set: str) -> int:
        """Count the pods of a pod set that may run."""
        return max(0, self.counts.get(pod_set, 0) - self.reclaimed.get(pod_set, 0))


@dataclass(frozen=True)
class Hold:
    """Reason why a job may have no pods."""

    reason: str
    message: str
    stalled: bool = False
    """Waiting does not help: a person must act."""

    @property
    def stall(self) -> ConditionReason:
        return ConditionReason(self.reason, self.message)


@dataclass(frozen=True)
class Priority:
    """Priority of the base, and the class that defines it."""

    value: int = 0
    group: str = ""
    """API group of the class; empty without one."""
    name: str = ""


@dataclass(frozen=True)
class Kueue:
    """Kueue's view of one job that names a queue."""

    queue: str
    problem: ConditionReason | None = None
    """Why Kueue cannot be reached at all."""
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    """The job's own Workloads, by name."""
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    """Assigned flavors that exist, by name."""
    priority: Priority | ConditionReason = Priority()


def base_name(job: str) -> str:
    return f"{job}-{BASE}"


def surplus_name(job: str, index: int) -> str:
    return f"{job}-{machine_name(ROLE_ROLLOUT, index)}"


def runner_set(environment: str) -> str:
    """Name the pod set of an environment's runners: no role has such a name, and a long one ends in a hash."""
    name = f"environment-{environment}"
    digest = hashlib.sha256(environment.encode()).hexdigest()[:8]
    return name if len(name) <= _LONGEST_SET else f"{name[: _LONGEST_SET - 9]}-{digest}"


def workload_of(job: str, machine: str, kueue: Kueue) -> Workload | None:
    """Find the Workload of a machine: its own, else the base."""
    return kueue.workloads.get(f"{job}-{machine}") or kueue.workloads.get(base_name(job))


def queue_of(job: RLJob, workloads: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the queue of a job; None without one.

    Removing the label does not free pods from their quota: while Workloads exist, their queue counts.
    """
    label = job.metadata.labels.get(QUEUE)
    if label:
        return label
    return next((queue for item in workloads if (queue := (item.get("spec") or {}).get("queueName"))), None)


def relevant_part(item: Mapping[str, Any]) -> Json:
    """Reduce a Workload to what decisions need, without pod templates and managed fields."""
    meta = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    spec: Mapping[str, Any] = item.get("spec") or {}
    pod_sets = [{"name": one.get("name"), "count": one.get("count")} for one in spec.get("podSets") or ()]
    return {"metadata": meta, "spec": {**spec, "podSets": pod_sets}, "status": item.get("status")}


def parse_workload(item: Mapping[str, Any]) -> Workload:
    """Parse a Workload from its API object."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    admission = status.get("admission") or {}
    conditions: tuple[Condition, ...] = tuple(status.get("conditions") or ())
    reserved = any(one.get("type") == QUOTA_RESERVED and one.get("status") == "True" for one in conditions)
    return Workload(
        name=meta["name"],
        uid=meta.get("uid", ""),
        version=meta.get("resourceVersion", ""),
        owners=tuple(one.get("uid", "") for one in meta.get("ownerReferences") or ()),
        queue=spec.get("queueName") or "",
        cluster_queue=admission.get("clusterQueue") or "",
        asks=(meta.get("annotations") or {}).get(ASKS, ""),
        selects=(meta.get("annotations") or {}).get(SELECTS, ""),
        priority=spec.get("priority") or 0,
        active=spec.get("active") is not False,
        deleting=bool(meta.get("deletionTimestamp")),
        counts={one.get("name", ""): one.get("count", 0) for one in spec.get("podSets") or ()},
        reclaimed={one.get("name", ""): one.get("count", 0) for one in status.get("reclaimablePods") or ()},
        reserved=reserved and bool(admission),
        assigned={one.get("name", ""): _assignment(one, status) for one in admission.get("podSetAssignments") or ()},
        conditions=conditions,
    )


def _assignment(item: Mapping[str, Any], status: Mapping[str, Any]) -> Assignment:
    name = item.get("name", "")
    checks = status.get("admissionChecks") or ()
    updates = [update for check in checks for update in check.get("podSetUpdates") or () if update.get("name") == name]
    flavors = tuple(dict.fromkeys(sorted((item.get("flavors") or {}).values())))
    return Assignment(flavors, tuple(updates), bool(item.get("topologyAssignment")))


def parse_flavor(item: Mapping[str, Any]) -> Flavor:
    """Parse a ResourceFlavor from its API object."""
    spec = item.get("spec") or {}
    return Flavor(item["metadata"]["name"], spec.get("nodeLabels") or {}, tuple(spec.get("tolerations") or ()))


def with_conditions(
    before: Sequence[Condition], changes: Sequence[tuple[str, bool, ConditionReason]], now: datetime
) -> list[Condition]:
    """Set some conditions. A transition time changes only with its status."""
    found = {one.get("type"): one for one in before}
    for kind, holds, why in changes:
        old: Condition = found.get(kind) or {}
        status = "True" if holds else "False"
        found[kind] = {
            **old,
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "type": kind,
            "status": status,
            "reason": why.reason,
            "message": why.message[:1024],
        }
        if old.get("status") == status and "lastTransitionTime" in old:
            found[kind]["lastTransitionTime"] = old["lastTransitionTime"]
    return list(found.values())
