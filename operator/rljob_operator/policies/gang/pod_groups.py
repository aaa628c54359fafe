"""Pod groups: the pods without which a job cannot start are placed together or not at all.

Otherwise two jobs on a cluster with room for one would hold half of it each, and wait for ever. A pod group is needed
at the start, and at each resumption. The gang is exactly the base: coordinator, trainer, and the fewest rollout
machines that the job needs. Other machines are created once the base is placed, and are not in the group. The same
holds for all pods of a job that has started: a replacement in the group would wait until as many pods as the gang has
exist.

Each scheduler has its own API. The objects follow the schedulers' documentation; of `scheduling.k8s.io` only v1beta1
(Kubernetes 1.37) is used, because in v1alpha2 (1.36) the size of a group is immutable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from rljob_api import constants as c
from rljob_api.admission.last_accepted import accept
from rljob_api.spec import Gang, RLJob, RLJobSpec
from rljob_api.status import RLJobStatus
from rljob_kube.manifests.objects import GangPlace, GangSize, PodGroup, PodGroupSizePatch
from rljob_kube.manifests.pods import Pod, PodSpec
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.names import owner_reference
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.pods.pod_set import placed_machines

KIND: Final = "PodGroup"
PLURAL = "podgroups"

RECHECK_SECONDS = 15.0
"""Seconds between checks for an absent API."""

KAI_QUEUE = "kai.scheduler/queue"
"""Label of an RLJob: the queue of its pods, which KAI requires of every workload."""
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotation of an RLJob: the queue of its pods, as on Volcano's other workloads. Absent: Volcano's default queue."""


@dataclass(frozen=True)
class System:
    """A scheduler that places groups, and the API of its PodGroups."""

    group: str
    version: str
    scheduler: str | None
    """Name of the scheduler where the spec gives none. None: the cluster's default one."""
    install: str
    """How to install it."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


SYSTEMS: Mapping[Gang, System] = {
    Gang.NATIVE: System(
        "scheduling.k8s.io",
        "v1beta1",
        None,
        "Kubernetes 1.37 serves it if kube-apiserver, kube-scheduler and kube-controller-manager run with "
        "--feature-gates=GenericWorkload=true, and kube-apiserver with --runtime-config=scheduling.k8s.io/v1beta1=true",
    ),
    Gang.COSCHEDULING: System(
        "scheduling.x-k8s.io",
        "v1alpha1",
        "scheduler-plugins-scheduler",
        "install the chart of kubernetes-sigs/scheduler-plugins",
    ),
    Gang.VOLCANO: System("scheduling.volcano.sh", "v1beta1", "volcano", "install Volcano"),
    Gang.KAI: System("scheduling.run.ai", "v2alpha2", "kai-scheduler", "install KAI Scheduler"),
}


def size(spec: RLJobSpec) -> int:
    """Count the pods of the base."""
    return 1 + spec.trainer.replicas + spec.rollout.smallest


def base(spec: RLJobSpec, machines: Sequence[str]) -> frozenset[str]:
    """Name the machines of the base, with these rollout machines in the target."""
    return frozenset(placed_machines(spec, machines[: spec.rollout.smallest]))


def gathers(spec: RLJobSpec, status: RLJobStatus) -> bool:
    """Tell whether the base is still to be placed as a gang: the job has not started, or not since it resumed."""
    return spec.scheduling.gang is not Gang.NONE and status.first_ready_time is None


# --- the group --------------------------------------------------------------------------------------------------------


def pod_group(job: RLJob) -> PodGroup | None:
    """Render the job's PodGroup; None without a gang."""
    kind = job.spec.scheduling.gang
    if kind is Gang.NONE:
        return None
    labels = {c.LABEL_JOB: job.name, c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE}
    queue = job.metadata.labels.get(KAI_QUEUE)
    if kind is Gang.KAI and queue is not None:
        labels[KAI_QUEUE] = queue
    return {
        "apiVersion": SYSTEMS[kind].api_version,
        "kind": KIND,
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {**_size(kind, size(job.spec)), **_place(job)},
    }


def changes(group: PodGroup) -> PodGroupSizePatch:
    """Return the part of an existing PodGroup that is updated: its size.

    Priority and queue stay as they were at the start.
    """
    kind = next(kind for kind, system in SYSTEMS.items() if system.api_version == group["apiVersion"])
    policy = group["spec"].get("schedulingPolicy")
    return {"spec": _size(kind, policy["gang"]["minCount"] if policy is not None else group["spec"]["minMember"])}


def missing(job: RLJob, observed: Observed) -> tuple[PodGroup, ...]:
    """Return the PodGroup where it must be created or updated now.

    That is before the first pod, at regular checks, and after an edit. The other children may exist for long while the
    group's API is absent.
    """
    group = pod_group(job)
    if group is None or observed.gang_served is False:
        return ()
    edited = job.status.accepted != accept(job)
    begins = gathers(job.spec, job.status) and not observed.pods
    return (group,) if edited or begins or not observed.children_present else ()


def _size(kind: Gang, count: int) -> GangSize:
    return {"schedulingPolicy": {"gang": {"minCount": count}}} if kind is Gang.NATIVE else {"minMember": count}


def _place(job: RLJob) -> GangPlace:
    """Return the group's queue and priority, where its API has them."""
    scheduling = job.spec.scheduling
    found: GangPlace = {}
    queue = {
        Gang.VOLCANO: job.metadata.annotations.get(VOLCANO_QUEUE),
        Gang.KAI: job.metadata.labels.get(KAI_QUEUE),
    }.get(scheduling.gang)
    if queue is not None:
        found["queue"] = queue
    if scheduling.priority_class_name is not None and scheduling.gang is not Gang.COSCHEDULING:
        found["priorityClassName"] = scheduling.priority_class_name
    return found


# --- its pods ---------------------------------------------------------------------------------------------------------


def joined(job: RLJob, machines: Sequence[str], machine: str, pod: Pod) -> Pod:
    """Add to a pod what its scheduler needs: the group's name and the queue."""
    kind = job.spec.scheduling.gang
    if kind is Gang.NONE:
        return pod
    member = gathers(job.spec, job.status) and machine in base(job.spec, machines)
    spec: PodSpec = {**pod["spec"]}
    metadata = pod["metadata"]
    labels, annotations = dict(metadata["labels"]), dict(metadata.get("annotations", {}))
    scheduler = SYSTEMS[kind].scheduler
    if scheduler is not None:
        spec.setdefault("schedulerName", scheduler)
    queue = job.metadata.labels.get(KAI_QUEUE)
    if kind is Gang.KAI and queue is not None:
        labels[KAI_QUEUE] = queue
    match kind:
        case Gang.NATIVE if member:
            spec["schedulingGroup"] = {"podGroupName": job.name}
        case Gang.COSCHEDULING if member:
            labels["scheduling.x-k8s.io/pod-group"] = job.name
        case Gang.VOLCANO if member:
            annotations["scheduling.k8s.io/group-name"] = job.name
        case Gang.KAI if member:
            # Otherwise KAI creates a group of one pod for the objects that the RLJob owns.
            annotations |= {"pod-group-name": job.name, "kai.scheduler/skip-podgrouper": "true"}
        case _:
            pass
    joined_pod: Pod = {**pod, "metadata": {**metadata, "labels": labels}, "spec": spec}
    if annotations:
        joined_pod["metadata"]["annotations"] = annotations
    return joined_pod


def admitted(job: RLJob, machines: Sequence[str], observed: Observed, created: Sequence[NewPod]) -> list[NewPod]:
    """Return the pods that may be created now.

    None without the group, and none above the base before the base is placed.
    """
    if obstacle(job, observed) is not None:
        return []
    if not gathers(job.spec, job.status):
        return list(created)
    first = base(job.spec, machines)
    return list(created) if _placed(first, observed) else [new for new in created if new.machine in first]


def _placed(machines: Collection[str], observed: Observed) -> bool:
    """Tell whether each of these machines has a pod with a node."""
    current = [observed.current(machine) for machine in machines]
    return all(pod is not None and (pod.node is not None or pod.phase != "Pending") for pod in current)


# --- what stands in the way -------------------------------------------------------------------------------------------


def obstacle(job: RLJob, observed: Observed) -> ConditionReason | None:
    """Explain why the group cannot be created, and what to do."""
    kind = job.spec.scheduling.gang
    if not gathers(job.spec, job.status):
        return None
    if observed.gang_served is False:
        system = SYSTEMS[kind]
        lacks = f"spec.scheduling.gang is {kind.value}, and the API server has no {PLURAL} of {system.api_version}"
        return ConditionReason(
            "GangUnavailable", f"{lacks}; {system.install}, or suspend the job and set spec.scheduling.gang to None"
        )
    if kind is Gang.KAI and KAI_QUEUE not in job.metadata.labels:
        return ConditionReason("GangUnavailable", f"KAI schedules by queues; name one in metadata.labels[{KAI_QUEUE}]")
    return None


def explained(job: RLJob, observed: Observed, stall: ConditionReason | None) -> ConditionReason | None:
    """Explain a stall of a job with a gang: no group, or no room for all pods together."""
    why = obstacle(job, observed)
    if why is not None:
        return why
    if stall is None or stall.reason != "Unschedulable" or not gathers(job.spec, job.status):
        return stall
    advice = (
        f"the gang of {size(job.spec)} pods (coordinator, {job.spec.trainer.replicas} trainer, "
        f"{job.spec.rollout.smallest} rollout) is placed together or not at all: free or add nodes for all of them, or "
        "lower spec.rollout.minMachines"
    )
    return replace(stall, message=f"{stall.message}; {advice}")


def refusal(job: RLJob, status: int, message: str) -> ConditionReason | None:
    """Explain the API server's refusal of a PodGroup; None where another try may succeed."""
    kind = job.spec.scheduling.gang
    if status == 404:
        return ConditionReason("GangUnavailable", f"the API server has no {PLURAL} any more; {SYSTEMS[kind].install}")
    if status == 403 and "no PriorityClass" not in message:
        value = f"the chart's value gangScheduling with {kind.value} in it gives the operator this right"
        return ConditionReason("GangForbidden", f"{message}; {value}")
    return None


def next_check(job: RLJob, observed: Observed, now: datetime) -> datetime | None:
    """Return when to check for an absent API."""
    return now + timedelta(seconds=RECHECK_SECONDS) if obstacle(job, observed) is not None else None
