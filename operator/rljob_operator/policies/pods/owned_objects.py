"""Owned objects besides pods: Service, ServiceAccount, Role, RoleBinding, Lease, PodDisruptionBudget and NetworkPolicy.

Here are the frames of the Secrets; the applier adds their random data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rljob_api import constants as c
from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.names import account, auth_secret, owner_reference, selector_labels
from rljob_operator.policies.base.observation import Devices, Observed
from rljob_operator.policies.pods import devices, environments

Json = dict[str, Any]

COORDINATOR_RULES_JOB: list[Json] = [
    {"apiGroups": [c.GROUP], "resources": [c.PLURAL], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [c.GROUP], "resources": [f"{c.PLURAL}/status"], "verbs": ["get", "patch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update", "patch"]},
]
"""Rights of a coordinator, each only on objects of its job's name."""


def missing(
    job: RLJob, observed: Observed, machines: Sequence[str], created: Iterable[NewPod], config: Config
) -> tuple[Json, ...]:
    """Return the objects to create or update now.

    All of them when they were not checked recently, else those that these pods and this number of rollout machines
    change.
    """
    machine = c.machine_name(c.ROLE_COORDINATOR, 0)
    new = next((pod for pod in created if pod.role is Role.COORDINATOR), None)
    coordinator = new or observed.current(machine)
    if observed.children_present:
        # Also without a new one: it may have been addressed and then not created, because the old one is alive.
        moved: tuple[Json, ...] = ()
        if coordinator is not None and coordinator.incarnation != observed.addressed:
            moved = (service(job, coordinator.incarnation),)
        targeted = job.status.target.machines if job.status.target is not None else ()
        budget = () if len(targeted) == len(machines) else (disruption_budget(job, len(machines)),)
        return (*moved, *budget, *claim_templates(job, observed.devices))
    incarnation = coordinator.incarnation if coordinator is not None else job.status.incarnations.get(machine, 1)
    return (*children(job, incarnation, len(machines), config), *claim_templates(job, observed.devices))


def addressed_by(manifests: Iterable[Json]) -> int | None:
    """Return the incarnation of the coordinator that the Service among these selects; None without a Service."""
    selectors = (one["spec"]["selector"] for one in manifests if one["kind"] == "Service")
    return next((int(selector[c.LABEL_INCARNATION]) for selector in selectors), None)


def children(job: RLJob, coordinator_incarnation: int, machines: int, config: Config) -> list[Json]:
    """Render all objects that must exist before the pods.

    They are deterministic: creating them again is harmless.
    """
    name = account(job.name)
    found = [
        _object(job, "v1", "Secret", auth_secret(job), type="Opaque"),
        service(job, coordinator_incarnation),
        _object(job, "v1", "ServiceAccount", name, automountServiceAccountToken=False),
        _object(
            job,
            "rbac.authorization.k8s.io/v1",
            "Role",
            name,
            rules=[{**rule, "resourceNames": [job.name]} for rule in COORDINATOR_RULES_JOB],
        ),
        _object(
            job,
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            name,
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": job.namespace}],
        ),
        _object(
            job,
            "coordination.k8s.io/v1",
            "Lease",
            job.name,
            spec={"leaseDurationSeconds": config.coordinator_lease_seconds, "leaseTransitions": 0},
        ),
        disruption_budget(job, machines),
    ]
    if job.spec.environments:
        found.append(_object(job, "v1", "Secret", c.environments_secret_of(job.name, job.metadata.uid), type="Opaque"))
    return [*found, *_network_policies(job)] if config.network_policy else found


def service(job: RLJob, coordinator_incarnation: int) -> Json:
    """Render the stable address of the coordinator.

    It selects one incarnation: a terminating pod must not be found. It has its own address, because a headless name may
    be resolved again only after 30 s: gRPC waits as long between two lookups, and DNS servers cache.
    """
    gateway = [{"name": "gateway", "port": c.GATEWAY_PORT, "protocol": "TCP"}] if job.spec.environments else []
    return _object(
        job,
        "v1",
        "Service",
        c.coordinator_service(job.name),
        spec={
            "publishNotReadyAddresses": True,  # workers must find the head before it can be ready
            "selector": {
                **selector_labels(job.name, Role.COORDINATOR),
                c.LABEL_INCARNATION: str(coordinator_incarnation),
            },
            "ports": [
                {"name": "ray", "port": c.RAY_PORT, "protocol": "TCP"},
                {"name": "health", "port": c.HEALTH_PORT, "protocol": "TCP"},
                *gateway,
            ],
        },
    )


def disruption_budget(job: RLJob, machines: int) -> Json:
    """Render the budget that lets a drain take one rollout machine at a time.

    It has a number and no maxUnavailable: with that the server would read the number of machines from
    `spec.rollout.machines`, and the operator may have chosen another one.
    """
    return _object(
        job,
        "policy/v1",
        "PodDisruptionBudget",
        f"{job.name}-{c.ROLE_ROLLOUT}",
        spec={
            "minAvailable": max(0, machines - 1),
            "selector": {"matchLabels": selector_labels(job.name, Role.ROLLOUT)},
        },
    )


def claim_templates(job: RLJob, present: Devices) -> list[Json]:
    """Render the missing ResourceClaimTemplates of the operator: one for each role with a DeviceClass.

    The claims carry labels, so that they are found by job.
    """
    found = []
    for role in Role:
        name, content = devices.template_name(job, role), devices.template_spec(job.spec, role)
        if name is None or content is None or name in present.templates or not present.served:
            continue
        labels = {**selector_labels(job.name, role), c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE}
        spec = {"metadata": {"labels": labels}, "spec": content}
        found.append(_object(job, "/".join(devices.API), "ResourceClaimTemplate", name, spec=spec))
    return found


def _network_policies(job: RLJob) -> list[Json]:
    """Render the NetworkPolicies: of the job's own pods, and of the runners of its environments.

    Only pods of the job reach each other, and any client reads health and metrics. Runners reach the gateway. Egress of
    the job's own pods is open.
    """
    ingress: list[Json] = [
        {"from": [{"podSelector": {"matchLabels": {c.LABEL_JOB: job.name}}}]},
        {"ports": [{"port": c.HEALTH_PORT, "protocol": "TCP"}]},
    ]
    runners: list[Json] = []
    if job.spec.environments:
        peer = {"podSelector": {"matchLabels": {c.LABEL_ENVIRONMENTS_OF: job.name}}}
        ingress[1]["ports"].append({"port": c.GATEWAY_METRICS_PORT, "protocol": "TCP"})
        ingress.append({"from": [peer], "ports": [{"port": c.GATEWAY_PORT, "protocol": "TCP"}]})
        runners.append(_policy(job, f"{job.name}-environments", environments.network_policy(job)))
    selected = {"podSelector": {"matchLabels": {c.LABEL_JOB: job.name}}}
    return [_policy(job, job.name, {**selected, "policyTypes": ["Ingress"], "ingress": ingress}), *runners]


def _policy(job: RLJob, name: str, spec: Json) -> Json:
    return _object(job, "networking.k8s.io/v1", "NetworkPolicy", name, spec=spec)


def _object(job: RLJob, api_version: str, kind: str, name: str, **content: Any) -> Json:
    metadata = {
        "name": name,
        "namespace": job.namespace,
        "labels": {c.LABEL_JOB: job.name, c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE},
        "ownerReferences": [owner_reference(job)],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}
