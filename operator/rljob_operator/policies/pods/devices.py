"""Devices: how pods get their accelerators.

An extended resource is counted in the main container's limits. With Dynamic Resource Allocation (DRA) the pod names a
ResourceClaimTemplate: Kubernetes creates a claim for each pod and deletes it with the pod. A pod whose template does
not exist waits without any condition, so the operator checks the template and reports it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from rljob_api.spec import RLJob, RLJobSpec
from rljob_api.status import Role
from rljob_kube.manifests.objects import ExactDevices, ResourceClaimSpec
from rljob_kube.manifests.pods import Container, PodSpec, Resources
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import Devices, Observed

CLAIM = "rljob-accelerators"
"""Name of the claim in the pod's resourceClaims."""
API = ("resource.k8s.io", "v1")
"""The API group and version of claims and their templates."""
RECHECK_SECONDS = 10.0
"""Seconds between checks while an obstacle prevents pods: the operator watches no templates."""

_CLAIMS_UNMET = ("cannot allocate all claims", "device class")
"""Texts in the scheduler's messages about a pod whose claims no node can satisfy."""


def count(spec: RLJobSpec, role: Role) -> int:
    """Return the accelerators of each pod of a role."""
    return spec.accelerators_of(role.value.lower())


def template_name(job: RLJob, role: Role) -> str | None:
    """Name the ResourceClaimTemplate of a role's pods; None where they claim nothing.

    Templates are immutable, so the name of the operator's own template holds a hash of its content.
    """
    accelerator, number = job.spec.accelerator_of(role.value.lower()), count(job.spec, role)
    if number == 0 or not accelerator.claims:
        return None
    if accelerator.claim_template is not None:
        return str(accelerator.claim_template)
    digest = hashlib.sha256(f"{accelerator.device_class}/{number}".encode()).hexdigest()[:8]
    return f"{job.name}-{role.value.lower()}-{digest}"


def template_names(job: RLJob) -> list[str]:
    """Name all ResourceClaimTemplates of the job's pods."""
    return sorted({name for name in (template_name(job, role) for role in Role) if name is not None})


def template_spec(spec: RLJobSpec, role: Role) -> ResourceClaimSpec | None:
    """Render the content of the operator's own template for a role; None where there is none."""
    device_class, number = spec.accelerator_of(role.value.lower()).device_class, count(spec, role)
    if number == 0 or device_class is None:
        return None
    exactly: ExactDevices = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": number}
    return {"devices": {"requests": [{"name": "accelerators", "exactly": exactly}]}}


def give(job: RLJob, role: Role, pod_spec: PodSpec, container: Container) -> None:
    """Add accelerators to a pod and its main container.

    The values in these are not changed: they belong to the template.
    """
    resource, number = job.spec.accelerator_of(role.value.lower()).resource, count(job.spec, role)
    resources: Resources = {**container.get("resources", {})}
    if number > 0 and resource is not None:
        container["resources"] = resources
        resources["limits"] = {resource: str(number), **resources.get("limits", {})}
    template = template_name(job, role)
    if template is not None:
        container["resources"] = resources
        resources["claims"] = [*resources.get("claims", []), {"name": CLAIM}]
        pod_spec["resourceClaims"] = [
            *pod_spec.get("resourceClaims", []),
            {"name": CLAIM, "resourceClaimTemplateName": template},
        ]


def obstacles(job: RLJob, devices: Devices) -> dict[Role, ConditionReason]:
    """Explain, by role, why no pod can be created now.

    It would wait for ever, or run without its accelerators.
    """
    found = {}
    for role in Role:
        name = template_name(job, role)
        if name is None:
            continue
        path, accelerator = _path(job.spec, role), job.spec.accelerator_of(role.value.lower())
        consequence = f"No {role.value.lower()} pod is made."
        if not devices.served:
            why = f"{path} claims devices, and this cluster does not serve {'/'.join(API)}. {consequence}"
            advice = "Upgrade Kubernetes to 1.34 or newer, or set spec.accelerator.resource, e.g. to nvidia.com/gpu."
            found[role] = ConditionReason("DeviceClaimsNotServed", f"{why} {advice}")
        elif accelerator.claim_template is not None and name not in devices.templates:
            why = f"{path}.claimTemplate: namespace {job.namespace} has no ResourceClaimTemplate {name}. {consequence}"
            advice = "Create it there: pods cannot use a template of another namespace."
            found[role] = ConditionReason("ClaimTemplateNotFound", f"{why} {advice}")
    return found


def obstacle(
    barred: Mapping[Role, ConditionReason], wanted: Iterable[NewPod], observed: Observed
) -> ConditionReason | None:
    """Return the first obstacle that a pod waits for.

    Pods that have their devices need no template any more.
    """
    waiting = {new.role for new in wanted} | {pod.role for pod in observed.pods if pod.live and pod.node is None}
    return next((stall for role, stall in barred.items() if role in waiting), None)


def next_check(found: ConditionReason | None, now: datetime) -> datetime | None:
    """Return when to check whether the obstacle is gone."""
    return None if found is None else now + timedelta(seconds=RECHECK_SECONDS)


def explained(job: RLJob, observed: Observed, stall: ConditionReason | None) -> ConditionReason | None:
    """Add the claims of pods without a node to a stall, where the scheduler reports that no node satisfies them."""
    if stall is None or stall.reason != "Unschedulable" or not any(text in stall.message for text in _CLAIMS_UNMET):
        return stall
    homeless = {pod.role for pod in observed.pods if pod.live and pod.unschedulable is not None}
    claimed = [_claimed(job, role) for role in Role if role in homeless and _asks(job, role)]
    advice = "kubectl get deviceclasses,resourceslices shows what the cluster has."
    return ConditionReason(stall.reason, " ".join([stall.message, *claimed, advice])) if claimed else stall


def _asks(job: RLJob, role: Role) -> bool:
    """Tell whether a role's pods request devices, by claims or by an extended resource that a DeviceClass may serve."""
    resource = job.spec.accelerator_of(role.value.lower()).resource
    return template_name(job, role) is not None or (count(job.spec, role) > 0 and resource is not None)


def _claimed(job: RLJob, role: Role) -> str:
    accelerator, path = job.spec.accelerator_of(role.value.lower()), _path(job.spec, role)
    if accelerator.resource is not None:
        what = f"{count(job.spec, role)} of {accelerator.resource} ({path}.resource), where a DeviceClass serves that"
    elif accelerator.device_class is None:
        what = f"what ResourceClaimTemplate {accelerator.claim_template} says ({path}.claimTemplate)"
    else:
        what = f"{count(job.spec, role)} devices of DeviceClass {accelerator.device_class} ({path}.deviceClass)"
    return f"Each {role.value.lower()} pod claims {what}."


def _path(spec: RLJobSpec, role: Role) -> str:
    """Return the path in the spec that gives a role its accelerators."""
    own = {Role.TRAINER: spec.trainer.accelerator, Role.ROLLOUT: spec.rollout.accelerator}.get(role)
    return "spec.accelerator" if own is None else f"spec.{role.value.lower()}.accelerator"
