"""Kueue's objects as values: Workloads of a job, what was assigned to them, and what else admission rests on.

A job that names a queue asks for quota in pieces: one Workload, the base, for the coordinator, the trainer and the
fewest rollout machines, and one of lower priority for each rollout machine above those. So Kueue can take one machine
of a running job. Parsing is total: odd objects become odd values, never exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rljob_api.constants import GROUP, ROLE_ROLLOUT, machine_name
from rljob_api.spec import RLJob
from rljob_operator.policies.base.condition_reason import ConditionReason

Json = dict[str, Any]

API = "kueue.x-k8s.io"
API_VERSION = f"{API}/v1beta2"
QUEUE = f"{API}/queue-name"
"""Label of a job: the LocalQueue that it asks."""
PRIORITY_CLASS = f"{API}/priority-class"
"""Label of a job: its WorkloadPriorityClass."""
ASKS = f"{GROUP}/asks"
"""Annotation of a Workload: a hash of what its pod sets ask for."""
SELECTS = f"{GROUP}/selects"
"""Annotation of a Workload: a hash of what its pod sets' nodes are chosen by."""
BASE = "base"

ADMITTED, QUOTA_RESERVED, EVICTED, REQUEUED = "Admitted", "QuotaReserved", "Evicted", "Requeued"
FINISHED, PODS_READY = "Finished", "PodsReady"


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor: which nodes its quota stands for."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Assignment:
    """What Kueue gave to one pod set."""

    flavors: tuple[str, ...] = ()
    updates: tuple[Json, ...] = ()
    """What admission checks add to its pods."""
    topology: bool = False
    """Kueue chose single nodes, too."""


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
    """Of these, pods whose quota was given back."""
    reserved: bool = False
    """It holds quota."""
    assigned: Mapping[str, Assignment] = field(default_factory=dict)
    conditions: tuple[Json, ...] = ()

    @property
    def admitted(self) -> bool:
        """Pods may run for it."""
        return self.reserved and self.active and not self.deleting and self.holds(ADMITTED) and not self._ended

    @property
    def evicted(self) -> bool:
        """It is to give its quota back, or has done so."""
        return self.holds(EVICTED)

    @property
    def _ended(self) -> bool:
        return self.evicted or self.holds(FINISHED)

    @property
    def why(self) -> ConditionReason:
        """Why it is not admitted, in Kueue's words."""
        for kind, status in ((EVICTED, "True"), (QUOTA_RESERVED, "False"), (ADMITTED, "False")):
            found = self.condition(kind)
            if found is not None and found.get("status") == status and (kind != EVICTED or self.reserved):
                return ConditionReason(str(found.get("reason", "")), str(found.get("message", "")))
        return ConditionReason("Pending", "Kueue has not looked at it yet")

    def condition(self, kind: str) -> Json | None:
        return next((one for one in self.conditions if one.get("type") == kind), None)

    def holds(self, kind: str) -> bool:
        """Whether a condition is True."""
        found = self.condition(kind)
        return found is not None and found.get("status") == "True"

    def slots(self, pod_set: str) -> int:
        """Pods of a pod set that may run."""
        return max(0, self.counts.get(pod_set, 0) - self.reclaimed.get(pod_set, 0))


@dataclass(frozen=True)
class Hold:
    """Why a job may have no pods."""

    reason: str
    message: str
    stalled: bool = False
    """Time alone does not help: somebody has to do something."""

    @property
    def stall(self) -> ConditionReason:
        return ConditionReason(self.reason, self.message)


@dataclass(frozen=True)
class Priority:
    """How urgent the base is, and the class that says so."""

    value: int = 0
    group: str = ""
    """Of the class; empty without one."""
    name: str = ""


@dataclass(frozen=True)
class Kueue:
    """What was seen for one job that names a queue."""

    queue: str
    problem: ConditionReason | None = None
    """Why Kueue cannot be asked at all."""
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    """The job's own, by name."""
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    """Those of the assigned flavors that exist."""
    priority: Priority | ConditionReason = Priority()


def base_name(job: str) -> str:
    return f"{job}-{BASE}"


def surplus_name(job: str, index: int) -> str:
    return f"{job}-{machine_name(ROLE_ROLLOUT, index)}"


def workload_of(job: str, machine: str, kueue: Kueue) -> Workload | None:
    """The Workload that a machine runs for: one of its own, else the base."""
    return kueue.workloads.get(f"{job}-{machine}") or kueue.workloads.get(base_name(job))


def queue_of(job: RLJob, workloads: Sequence[Mapping[str, Any]]) -> str | None:
    """The queue that a job is bound to; None for a job that asks none. A label that is taken off does not free pods
    from their quota: while there are Workloads, their queue counts."""
    label = job.metadata.labels.get(QUEUE)
    if label:
        return label
    return next((queue for item in workloads if (queue := (item.get("spec") or {}).get("queueName"))), None)


def relevant_part(item: Mapping[str, Any]) -> Json:
    """What of a Workload is looked at: neither the templates of its pods nor who manages what."""
    meta = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    spec: Mapping[str, Any] = item.get("spec") or {}
    pod_sets = [{"name": one.get("name"), "count": one.get("count")} for one in spec.get("podSets") or ()]
    return {"metadata": meta, "spec": {**spec, "podSets": pod_sets}, "status": item.get("status")}


def parse_workload(item: Mapping[str, Any]) -> Workload:
    """A Workload from its API object."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    admission = status.get("admission") or {}
    conditions = tuple(dict(one) for one in status.get("conditions") or ())
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
    """A ResourceFlavor from its API object."""
    spec = item.get("spec") or {}
    return Flavor(item["metadata"]["name"], spec.get("nodeLabels") or {}, tuple(spec.get("tolerations") or ()))


def with_conditions(
    before: Sequence[Json], changes: Sequence[tuple[str, bool, ConditionReason]], now: datetime
) -> list[Json]:
    """The conditions with some set; a transition time changes only with its status."""
    found = {one.get("type"): one for one in before}
    for kind, holds, why in changes:
        old, status = found.get(kind), "True" if holds else "False"
        same = old is not None and old.get("status") == status
        moment = old.get("lastTransitionTime") if same and old is not None else now.strftime("%Y-%m-%dT%H:%M:%SZ")
        found[kind] = {
            **(old or {}),
            "type": kind,
            "status": status,
            "reason": why.reason,
            "message": why.message[:1024],
            "lastTransitionTime": moment,
        }
    return list(found.values())
