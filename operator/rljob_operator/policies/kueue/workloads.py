"""Workloads: what a job requests from Kueue, as manifests.

The base has a pod set for each role, and one for the runners of each environment. A pod set contains only what decides
quota and flavors: containers with their resources, node selectors and tolerations. A Workload is outdated when the pods
request other resources. While it waits for quota, it is also outdated when they request other nodes. A new image, or a
new version of this operator, changes no request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence

from rljob_api import constants as c
from rljob_api.spec import Environment, RLJob
from rljob_api.status import Role
from rljob_kube.manifests.metadata import ObjectMeta
from rljob_kube.manifests.objects import PodSet, Workload
from rljob_kube.manifests.pods import Container, PodSpec, Resources
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.kueue_objects import (
    API_VERSION,
    ASKS,
    QUEUE,
    SELECTS,
    Kueue,
    Priority,
    base_name,
    runner_set,
    surplus_name,
)
from rljob_operator.policies.base.names import owner_reference
from rljob_operator.policies.pods.environments import pod_template
from rljob_operator.policies.pods.manifests import charged
from rljob_operator.policies.pods.overlay import only

SURPLUS_DROP = 1_000_000_000
"""Difference in priority between a job and its machines above the minimum.

They are below every base with a usual priority, so that growth of one job delays no start of another. Among each other
they keep the order of their jobs.
"""
LOWEST = -(1 << 31)
MOST_POD_SETS = 8
"""Pod sets that Kueue accepts in a Workload."""

_CHARGED = ("resources", "resourceClaims", "overhead", "runtimeClassName")
_SELECTING = ("nodeSelector", "affinity", "tolerations", "priorityClassName")
_CHARGED_OF_CONTAINER = ("name", "resources", "restartPolicy")


def base(job: RLJob, kueue: Kueue, config: Config) -> Workload:
    """Render the Workload without which no pod of the job runs."""
    priority = kueue.priority if isinstance(kueue.priority, Priority) else Priority()
    found = _workload(job, kueue.queue, base_name(job.name), _base_counts(job), priority.value, config)
    found["spec"]["podSets"] += [
        {
            "name": runner_set(environment.name),
            "count": environment.most_runners,
            "template": {"spec": _requested(_runner_template(job, environment, config, (*_SELECTING, *_CHARGED)))},
        }
        for environment in job.spec.environments
    ]
    if priority.group:
        kind = "WorkloadPriorityClass" if priority.group == "kueue.x-k8s.io" else "PriorityClass"
        found["spec"]["priorityClassRef"] = {"group": priority.group, "kind": kind, "name": priority.name}
    return found


def too_many_environments(job: RLJob) -> ConditionReason | None:
    """Explain why Kueue would refuse the base; None if it has few enough pod sets."""
    most = MOST_POD_SETS - sum(count > 0 for count in _base_counts(job).values())
    if len(job.spec.environments) <= most:
        return None
    limit = f"a Workload has at most {MOST_POD_SETS} pod sets, one for each role and each environment"
    advice = f"remove the label {QUEUE}, or make a new RLJob with at most {most} environments"
    return ConditionReason("TooManyEnvironments", f"{len(job.spec.environments)} environments: {limit}; {advice}")


def _base_counts(job: RLJob) -> dict[Role, int]:
    return {Role.COORDINATOR: 1, Role.TRAINER: job.spec.trainer.replicas, Role.ROLLOUT: job.spec.rollout.smallest}


def surplus(job: RLJob, kueue: Kueue, indexes: Sequence[int], priority: int, config: Config) -> tuple[Workload, ...]:
    """Render the Workloads of these rollout machines above the minimum.

    They share all but their names. `priority`: the base's.
    """
    if not indexes:
        return ()
    found = _workload(job, kueue.queue, "", {Role.ROLLOUT: 1}, max(LOWEST, priority - SURPLUS_DROP), config)
    names = (surplus_name(job.name, index) for index in indexes)
    return tuple({**found, "metadata": {**found["metadata"], "name": name}} for name in names)


def asks(job: RLJob, roles: Collection[Role], config: Config) -> str:
    """Hash the resources that pods of these roles are charged for.

    If the coordinator is among them, the resources and numbers of all runners are included: runners have no Workload of
    their own. The numbers of machines are left out: the trainer's changes only while the job is suspended, and each
    further rollout machine has its own Workload.
    """
    runners: dict[str, Mapping[str, object]] = {
        runner_set(one.name): {"count": one.most_runners, **_runner_template(job, one, config, _CHARGED)}
        for one in _environments(job, roles)
    }
    parts: dict[str, Mapping[str, object]] = {role.value: _template(job, role, config, _CHARGED) for role in roles}
    return _hash(parts | runners)


def selects(job: RLJob, roles: Collection[Role], config: Config) -> str:
    """Hash the node selection of pods of these roles, and of all runners if the coordinator is among the roles."""
    runners = {
        runner_set(one.name): _selecting(_runner_template(job, one, config, _SELECTING))
        for one in _environments(job, roles)
    }
    return _hash({role.value: _selecting(_template(job, role, config, _SELECTING)) for role in roles} | runners)


def _environments(job: RLJob, roles: Collection[Role]) -> tuple[Environment, ...]:
    """Return the environments whose runners are in the Workload of these roles: that of the coordinator has them."""
    return job.spec.environments if Role.COORDINATOR in roles else ()


def _selecting(template: PodSpec) -> PodSpec:
    return only(template, _SELECTING)


def _hash(value: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _workload(job: RLJob, queue: str, name: str, counts: Mapping[Role, int], priority: int, config: Config) -> Workload:
    metadata: ObjectMeta = {
        "name": name,
        "namespace": job.namespace,
        "labels": {c.LABEL_JOB: job.name, c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE},
        "annotations": {ASKS: asks(job, counts, config), SELECTS: selects(job, counts, config)},
        "ownerReferences": [owner_reference(job)],
    }
    pod_sets: list[PodSet] = [
        {
            "name": role.value.lower(),
            "count": count,
            "template": {"spec": _requested(_template(job, role, config, (*_SELECTING, *_CHARGED)))},
        }
        for role, count in counts.items()
        if count > 0
    ]
    return {
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": metadata,
        "spec": {"queueName": queue, "active": True, "podSets": pod_sets, "priority": priority},
    }


def _requested(spec: PodSpec) -> PodSpec:
    """Copy limits into missing requests.

    The API server does so for pods and not for Workloads, and Kueue reads extended resources of a DeviceClass from
    requests.
    """
    found: PodSpec = {**spec}
    if "initContainers" in spec:
        found["initContainers"] = [_with_requests(one) for one in spec["initContainers"]]
    if "containers" in spec:
        found["containers"] = [_with_requests(one) for one in spec["containers"]]
    return found


def _with_requests(container: Container) -> Container:
    resources: Resources = container.get("resources") or {}
    if not resources.get("limits"):
        return container
    requests = {**resources["limits"], **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}


def _template(job: RLJob, role: Role, config: Config, fields: Sequence[str]) -> PodSpec:
    """Render the charged part of a role's pod: containers and these fields."""
    return {**_part(charged(job, role, config), fields), "restartPolicy": "Never"}


def _runner_template(job: RLJob, environment: Environment, config: Config, fields: Sequence[str]) -> PodSpec:
    """Render the charged part of a runner's pod."""
    return {**_part(pod_template(job, environment, config)["spec"], fields), "restartPolicy": "Always"}


def _part(spec: PodSpec, fields: Sequence[str]) -> PodSpec:
    found = only(spec, fields)
    if spec.get("initContainers"):
        found["initContainers"] = [only(one, _CHARGED_OF_CONTAINER) for one in spec["initContainers"]]
    if spec.get("containers"):
        found["containers"] = [only(one, _CHARGED_OF_CONTAINER) for one in spec["containers"]]
    return found
