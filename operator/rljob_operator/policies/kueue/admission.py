"""Kueue admission: whether a job with a queue may have pods now, which machines, and on which nodes.

Pods exist for admitted Workloads only. The base admits the job: without it the job is suspended with its state saved,
and resumes when the base is admitted again. A rollout machine above the minimum is in the target only while its own
Workload is admitted. A machine whose Workload is evicted leaves the target, and drains before it is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from rljob_api.constants import ROLE_ROLLOUT, machine_name
from rljob_api.spec import Environment, PodTemplate, RLJob, RLJobSpec
from rljob_api.status import Role
from rljob_kube.manifests.metadata import ObjectMeta, TemplateMeta
from rljob_kube.manifests.pods import Pod, PodSpec, PodTemplateSpec, Toleration
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.kueue_objects import (
    Assignment,
    Flavor,
    Hold,
    Kueue,
    Workload,
    base_name,
    runner_set,
    surplus_name,
    workload_of,
)
from rljob_operator.policies.base.names import machine_index
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.kueue import workloads
from rljob_operator.policies.kueue.waiting import waiting
from rljob_operator.policies.lifecycle.eviction import template_of
from rljob_operator.policies.pods import devices
from rljob_operator.policies.scaling import machines as machine_scaling

Meta = TypeVar("Meta", ObjectMeta, TemplateMeta)

ROLLOUT = Role.ROLLOUT.value.lower()


def hold(job: RLJob, observed: Observed, config: Config) -> Hold | None:
    """Explain why a job may have no pods now; None for an admitted job, or one without a queue."""
    kueue = observed.kueue
    if kueue is None:
        return None
    if kueue.problem is not None:
        return Hold(kueue.problem.reason, kueue.problem.message, stalled=True)
    name = base_name(job.name)
    base = kueue.workloads.get(name)
    if base is None:
        lacking = _lacking(job, observed, kueue)
        if lacking is not None:
            return Hold(lacking.reason, lacking.message, stalled=True)
        return Hold("WaitingForAdmission", f"Workload {name} is not created yet")
    if not base.admitted:
        return waiting(base, kueue.queue)
    if base.asks != workloads.asks(job, (Role.COORDINATOR, Role.TRAINER, Role.ROLLOUT), config):
        return Hold("ResourcesChanged", f"the pods request other resources than Workload {name} was admitted with")
    return _misplaced(job, base, kueue)


def _lacking(job: RLJob, observed: Observed, kueue: Kueue) -> ConditionReason | None:
    """Explain why the base cannot be requested: its pod sets, its priority class, or devices that its pods claim."""
    excess = workloads.too_many_environments(job)
    if excess is not None:
        return excess
    if isinstance(kueue.priority, ConditionReason):
        return kueue.priority
    return next(iter(devices.obstacles(job, observed.devices).values()), None)


def may_ask(job: RLJob, observed: Observed, kueue: Kueue) -> bool:
    """Tell whether the base may be requested."""
    return _lacking(job, observed, kueue) is None


def _misplaced(job: RLJob, base: Workload, kueue: Kueue) -> Hold | None:
    """Explain why pods cannot be placed on the assigned nodes."""
    templates = _templates(job.spec)
    for pod_set, assignment in base.assigned.items():
        lost = [name for name in assignment.flavors if name not in kueue.flavors]
        if lost:
            return Hold(
                "FlavorNotFound", f"{_assigned(base, pod_set)} ResourceFlavor {lost[0]}, which was deleted", True
            )
        if assignment.topology:
            selection = f"{_assigned(base, pod_set)} single nodes; use flavors without topologyName"
            return Hold("TopologyNotSupported", selection, True)
        path, template = templates.get(pod_set, ("", PodTemplate()))
        wanted = template.spec.get("nodeSelector") or {}
        clash = _clash(wanted, _selector(assignment, kueue.flavors))
        if clash is not None:
            key, ours, theirs = clash
            selection = f"{key}={theirs}, {path}.template.spec.nodeSelector says {ours}; make them agree"
            return Hold("FlavorMismatch", f"{_assigned(base, pod_set)} nodes with {selection}", True)
    return None


def _templates(spec: RLJobSpec) -> dict[str, tuple[str, PodTemplate]]:
    """Return path and template of each pod set."""
    found = {role.value.lower(): (f"spec.{role.value.lower()}", template_of(spec, role)) for role in Role}
    return found | {
        runner_set(one.name): (f"spec.environments[{index}]", one.template)
        for index, one in enumerate(spec.environments)
    }


def _assigned(base: Workload, pod_set: str) -> str:
    return f"Workload {base.name}: pod set {pod_set} is assigned"


def _clash(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, str, str] | None:
    return next(
        ((key, ours[key], theirs[key]) for key in sorted(theirs) if ours.get(key, theirs[key]) != theirs[key]), None
    )


# --- machines ---------------------------------------------------------------------------------------------------------


def choose_machines(
    job: RLJob,
    observed: Observed,
    targeted: Sequence[str],
    count: int,
    broken: Collection[str],
    barred: Collection[str],
) -> tuple[str, ...]:
    """Choose the rollout machines of the target: `count`, or as many as are admitted.

    `targeted` are those of the present target, `broken` have no working pod, `barred` are leaving.
    """
    kueue = observed.kueue
    base = kueue.workloads.get(base_name(job.name)) if kueue is not None else None
    if kueue is None or base is None:
        return machine_scaling.choose_machines(targeted, count, broken, barred)
    fixed = min(base.slots(ROLLOUT), count)
    own = {machine_name(ROLE_ROLLOUT, k) for k in range(base.slots(ROLLOUT), max(count, job.spec.rollout.largest))}
    own |= {name.removeprefix(f"{job.name}-") for name in kueue.workloads} - {"base"}
    chosen = machine_scaling.choose_machines(targeted, fixed, broken, {*barred, *own})
    more = [machine for machine in admitted(job, kueue, count) if machine not in barred]
    return tuple(sorted({*chosen, *more}, key=machine_index))


def surplus(job: RLJob, kueue: Kueue, count: int) -> list[int]:
    """Return the numbers of the machines that have their own Workload, of `count` machines."""
    base = kueue.workloads.get(base_name(job.name))
    return [] if base is None or not base.admitted else list(range(base.slots(ROLLOUT), count))


def admitted(job: RLJob, kueue: Kueue, count: int) -> list[str]:
    """Return the machines whose own Workload is admitted on known nodes."""
    return [
        machine_name(ROLE_ROLLOUT, index)
        for index in surplus(job, kueue, count)
        if (found := kueue.workloads.get(surplus_name(job.name, index))) is not None
        and found.admitted
        and all(name in kueue.flavors for one in found.assigned.values() for name in one.flavors)
    ]


def why_fewer(job: RLJob, observed: Observed, targeted: Sequence[str], machines: Sequence[str]) -> str:
    """Explain why machines leave the target, where Kueue is the cause."""
    if observed.kueue is None:
        return ""
    for machine in sorted(set(targeted) - set(machines), key=machine_index):
        found = observed.kueue.workloads.get(f"{job.name}-{machine}")
        if found is not None and found.evicted:
            return f"Kueue evicted {found.name}: {found.why.reason}: {found.why.message}"
    return ""


def admission_condition(job: RLJob, observed: Observed, count: int) -> ConditionReason | None:
    """Return the reason of the condition Admitted, for a job whose base is admitted; None without a queue."""
    if observed.kueue is None:
        return None
    base = observed.kueue.workloads.get(base_name(job.name))
    if base is None:
        return None
    asked = surplus(job, observed.kueue, count)
    given = len(admitted(job, observed.kueue, count))
    where = f"ClusterQueue {base.cluster_queue} admits {min(base.slots(ROLLOUT), count) + given} of {count} machines"
    waits = [surplus_name(job.name, index) for index in asked]
    names = [n for n in waits if (w := observed.kueue.workloads.get(n)) is None or not w.admitted]
    if not names:
        return ConditionReason("Admitted", where)
    first = observed.kueue.workloads.get(names[0])
    why = first.why.message if first is not None else "its Workload is not created yet"
    return ConditionReason("PartlyAdmitted", f"{where}; {names[0]} waits: {why}")


# --- nodes ------------------------------------------------------------------------------------------------------------


def placed(job: RLJob, new: NewPod, manifest: Pod, observed: Observed) -> Pod:
    """Add to a pod the assignment of its Workload: node labels, tolerations, and what admission checks add."""
    found = workload_of(job.name, new.machine, observed.kueue) if observed.kueue is not None else None
    assignment = found.assigned.get(new.role.value.lower()) if found is not None else None
    if assignment is None:
        return manifest
    return {
        **manifest,
        "metadata": _marked(manifest["metadata"], assignment),
        "spec": _on_assigned(manifest["spec"], assignment, observed),
    }


def placed_runners(
    job: RLJob, observed: Observed, environment: Environment, template: PodTemplateSpec
) -> PodTemplateSpec:
    """Add to the pod template of an environment the assignment of its pod set."""
    base = observed.kueue.workloads.get(base_name(job.name)) if observed.kueue is not None else None
    assignment = base.assigned.get(runner_set(environment.name)) if base is not None else None
    if assignment is None:
        return template
    return {
        **template,
        "metadata": _marked(template["metadata"], assignment),
        "spec": _on_assigned(template["spec"], assignment, observed),
    }


def _on_assigned(before: PodSpec, assignment: Assignment, observed: Observed) -> PodSpec:
    """Add the nodes of an assignment: their labels, and tolerations of their taints."""
    known = observed.kueue.flavors if observed.kueue is not None else {}
    flavors = [known[name] for name in assignment.flavors if name in known]
    spec: PodSpec = {**before}
    selector = {**(spec.get("nodeSelector") or {}), **_selector(assignment, known)}
    if selector:
        spec["nodeSelector"] = selector
    added = [*(t for flavor in flavors for t in flavor.tolerations), *_tolerations(assignment)]
    if added:
        own = spec.get("tolerations") or []
        spec["tolerations"] = [*own, *(one for n, one in enumerate(added) if one not in [*own, *added[:n]])]
    return spec


def _marked(before: Meta, assignment: Assignment) -> Meta:
    """Add the labels and annotations of an assignment. Those that are there stay."""
    metadata: Meta = {**before}
    labels, annotations = dict[str, str](), dict[str, str]()
    for update in assignment.updates:
        labels |= update.get("labels") or {}
        annotations |= update.get("annotations") or {}
    if labels:
        metadata["labels"] = {**labels, **before["labels"]}
    if annotations:
        metadata["annotations"] = {**annotations, **before.get("annotations", {})}
    return metadata


def _selector(assignment: Assignment, flavors: Mapping[str, Flavor]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in assignment.flavors:
        if name in flavors:
            found |= flavors[name].labels
    for update in assignment.updates:
        found |= update.get("nodeSelector") or {}
    return found


def _tolerations(assignment: Assignment) -> list[Toleration]:
    return [{**one} for update in assignment.updates for one in update.get("tolerations") or ()]
