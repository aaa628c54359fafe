"""A simulated API server for `plan`, with the Workloads of Kueue."""

from __future__ import annotations

import copy
from dataclasses import replace

from rljob_api.spec import RLJob
from rljob_api.status import Phase
from rljob_kube.resources import Json
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.kueue_objects import (
    QUEUE,
    Flavor,
    Kueue,
    Priority,
    Workload,
    parse_workload,
    with_conditions,
)
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.phases.steps import Plan
from tests.support.operator.plan_cluster import Cluster, asynchronous

CONFIG = Config()
UID = "11111111-2222"
ZONE = Flavor("zone-1", {"topology.kubernetes.io/zone": "zone-1"}, ({"key": "spot", "operator": "Exists"},))
BOUNDS = {"machines": 3, "minMachines": 1, "maxMachines": 4}


def queued(job: RLJob) -> RLJob:
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"labels": {QUEUE: "lq"}})})


class Queued(Cluster):
    """An API server with Kueue's Workloads in it. Kueue itself is the test that calls `admit` and `evict`."""

    def __init__(self, job: RLJob) -> None:
        super().__init__(queued(job))
        self.workloads: dict[str, Json] = {}
        self.queue = "lq"
        self.problem: ConditionReason | None = None
        self.priority: Priority | ConditionReason = Priority()
        self.flavors = {"zone-1": ZONE}

    def observed(self) -> Observed:
        found = {name: parse_workload(item) for name, item in self.workloads.items()}
        flavors = {name: self.flavors[name] for name in self.flavors}
        kueue = Kueue(self.queue, self.problem, {} if self.problem else found, flavors, self.priority)
        return replace(super().observed(), kueue=kueue)

    def apply(self, decided: Plan, steps: int = 1_000_000, refuses: str = "") -> None:
        super().apply(decided, steps, refuses)
        if steps < 12:
            return
        for manifest in decided.asked:
            self.serial += 1
            name = manifest["metadata"]["name"]
            assert name not in self.workloads
            created: Json = {**copy.deepcopy(manifest)}
            created["metadata"] |= {"uid": f"wl-{self.serial}", "resourceVersion": str(self.serial)}
            self.workloads[name] = created
        for one in decided.settled:
            item = self.workloads[one.workload.name]
            if one.status is None:
                del self.workloads[one.workload.name]
            else:
                kept = {key: value for key, value in {**item.get("status", {}), **one.status}.items() if value}
                self.workloads[one.workload.name] = {**item, "status": kept}

    def parsed(self, name: str) -> Workload:
        return parse_workload(self.workloads[name])

    def admit(self, name: str) -> None:
        """Kueue gives the quota that a Workload asks for."""
        item = self.workloads[name]
        changes = [(kind, True, ConditionReason("Given", "")) for kind in ("QuotaReserved", "Admitted")]
        changes.append(("Evicted", False, ConditionReason("QuotaReserved", "")))
        assignments = [
            {"name": one["name"], "count": one["count"], "flavors": {"cpu": "zone-1"}}
            for one in item["spec"]["podSets"]
        ]
        admission = {"clusterQueue": "cq", "podSetAssignments": assignments}
        conditions = with_conditions(self.parsed(name).conditions, changes, self.now)
        item["status"] = {**item.get("status", {}), "admission": admission, "conditions": conditions}

    def say(self, name: str, kind: str, holds: bool, reason: str, message: str) -> None:
        """A condition of a Workload, as Kueue writes it."""
        item = self.workloads[name]
        conditions = with_conditions(
            self.parsed(name).conditions, [(kind, holds, ConditionReason(reason, message))], self.now
        )
        item["status"] = {**item.get("status", {}), "conditions": conditions}

    def evict(self, name: str) -> None:
        self.say(name, "Evicted", True, "Preempted", "for a neighbour")

    def admit_all(self) -> None:
        for name, item in self.workloads.items():
            if not parse_workload(item).reserved:
                self.admit(name)

    def bury(self) -> None:
        """Pods that were asked to go have gone."""
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleting}

    def machines(self) -> tuple[str, ...]:
        assert self.status.target is not None
        return self.status.target.machines

    def reason(self, kind: str) -> str:
        found = self.status.condition(kind)
        return f"{found.status.value}/{found.reason}" if found is not None else ""


def running(job: RLJob | None = None) -> Queued:
    """A job of one machine in its base and two above it, all admitted and at work."""
    cluster = Queued(job or asynchronous(rollout=BOUNDS, checkpoint={"volumeClaimName": "state"}))
    for _ in range(3):
        cluster.settle()
        cluster.admit_all()
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    assert cluster.status.phase is Phase.RUNNING
    return cluster
