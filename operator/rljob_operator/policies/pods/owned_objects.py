"""Owned objects besides pods: Service, ServiceAccount, Role, RoleBinding, Lease, PodDisruptionBudget and NetworkPolicy.

Here are the frames of the Secrets; the applier adds their random data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rljob_api import constants as c
from rljob_api.spec import Environment, RLJob
from rljob_api.status import Role
from rljob_kube.manifests.metadata import ObjectMeta
from rljob_kube.manifests.objects import (
    Child,
    DisruptionBudget,
    IngressRule,
    NetworkPolicy,
    NetworkPolicySpec,
    Peer,
    PolicyRule,
    ResourceClaimTemplate,
    Secret,
    Service,
    ServicePort,
)
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.names import account, auth_secret, owner_reference, selector_labels
from rljob_operator.policies.base.observation import Devices, Observed
from rljob_operator.policies.pods import devices, egress, egress_proxy

COORDINATOR_RULES_JOB: list[PolicyRule] = [
    {"apiGroups": [c.GROUP], "resources": [c.PLURAL], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [c.GROUP], "resources": [f"{c.PLURAL}/status"], "verbs": ["get", "patch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update", "patch"]},
]
"""Rights of a coordinator, each only on objects of its job's name."""


def missing(
    job: RLJob, observed: Observed, machines: Sequence[str], created: Iterable[NewPod], config: Config
) -> tuple[Child, ...]:
    """Return the objects to create or update now.

    All of them when they were not checked recently, else those that these pods and this number of rollout machines
    change.
    """
    machine = c.machine_name(c.ROLE_COORDINATOR, 0)
    new = next((pod for pod in created if pod.role is Role.COORDINATOR), None)
    coordinator = new or observed.current(machine)
    if observed.children_present:
        # Also without a new one: it may have been addressed and then not created, because the old one is alive.
        moved: tuple[Child, ...] = ()
        if coordinator is not None and coordinator.incarnation != observed.addressed:
            moved = (service(job, coordinator.incarnation),)
        targeted = job.status.target.machines if job.status.target is not None else ()
        budget = () if len(targeted) == len(machines) else (disruption_budget(job, len(machines)),)
        reach = _changed_egress(job, observed, config)
        return (*moved, *budget, *reach, *claim_templates(job, observed.devices))
    incarnation = coordinator.incarnation if coordinator is not None else job.status.incarnations.get(machine, 1)
    return (*children(job, incarnation, len(machines), config), *claim_templates(job, observed.devices))


def addressed_by(manifests: Iterable[Child]) -> int | None:
    """Return the incarnation of the coordinator that its Service among these selects; None without that Service."""
    selectors = (one["spec"]["selector"] for one in manifests if one["kind"] == "Service")
    numbers = (selector.get(c.LABEL_INCARNATION) for selector in selectors)
    return next((int(number) for number in numbers if number is not None), None)


def children(job: RLJob, coordinator_incarnation: int, machines: int, config: Config) -> list[Child]:
    """Render all objects that must exist before the pods.

    They are deterministic: creating them again is harmless.
    """
    name = account(job.name)
    found: list[Child] = [
        _secret(job, auth_secret(job)),
        service(job, coordinator_incarnation),
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": _metadata(job, name),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": _metadata(job, name),
            "rules": [{**rule, "resourceNames": [job.name]} for rule in COORDINATOR_RULES_JOB],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": _metadata(job, name),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": job.namespace}],
        },
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": _metadata(job, job.name),
            "spec": {"leaseDurationSeconds": config.coordinator_lease_seconds, "leaseTransitions": 0},
        },
        disruption_budget(job, machines),
    ]
    if job.spec.environments:
        found.append(_secret(job, c.environments_secret_of(job.name, job.metadata.uid)))
    found += _egress(job, job.spec.environments, config)
    return [*found, _network_policy(job)] if config.network_policy else found


def service(job: RLJob, coordinator_incarnation: int) -> Service:
    """Render the stable address of the coordinator.

    It selects one incarnation: a terminating pod must not be found. It has its own address, because a headless name may
    be resolved again only after 30 s: gRPC waits as long between two lookups, and DNS servers cache.
    """
    ports: list[ServicePort] = [
        {"name": "ray", "port": c.RAY_PORT, "protocol": "TCP"},
        {"name": "health", "port": c.HEALTH_PORT, "protocol": "TCP"},
    ]
    if job.spec.environments:
        ports.append({"name": "gateway", "port": c.GATEWAY_PORT, "protocol": "TCP"})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, c.coordinator_service(job.name)),
        "spec": {
            "publishNotReadyAddresses": True,  # workers must find the head before it can be ready
            "selector": {
                **selector_labels(job.name, Role.COORDINATOR),
                c.LABEL_INCARNATION: str(coordinator_incarnation),
            },
            "ports": ports,
        },
    }


def disruption_budget(job: RLJob, machines: int) -> DisruptionBudget:
    """Render the budget that lets a drain take one rollout machine at a time.

    It has a number and no maxUnavailable: with that the server would read the number of machines from
    `spec.rollout.machines`, and the operator may have chosen another one.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(job, f"{job.name}-{c.ROLE_ROLLOUT}"),
        "spec": {
            "minAvailable": max(0, machines - 1),
            "selector": {"matchLabels": selector_labels(job.name, Role.ROLLOUT)},
        },
    }


def claim_templates(job: RLJob, present: Devices) -> list[ResourceClaimTemplate]:
    """Render the missing ResourceClaimTemplates of the operator: one for each role with a DeviceClass.

    The claims carry labels, so that they are found by job.
    """
    found: list[ResourceClaimTemplate] = []
    for role in Role:
        name, content = devices.template_name(job, role), devices.template_spec(job.spec, role)
        if name is None or content is None or name in present.templates or not present.served:
            continue
        labels = {**selector_labels(job.name, role), c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE}
        found.append(
            {
                "apiVersion": "/".join(devices.API),
                "kind": "ResourceClaimTemplate",
                "metadata": _metadata(job, name),
                "spec": {"metadata": {"labels": labels}, "spec": content},
            }
        )
    return found


def _network_policy(job: RLJob) -> NetworkPolicy:
    """Render the NetworkPolicy of the job's own pods.

    Only pods of the job reach each other, and any client reads health and metrics. Runners reach the gateway. Egress of
    the job's own pods is open.
    """
    ingress: list[IngressRule] = [
        {"from": [{"podSelector": {"matchLabels": {c.LABEL_JOB: job.name}}}]},
        {"ports": [{"port": c.HEALTH_PORT, "protocol": "TCP"}]},
    ]
    if job.spec.environments:
        peer: Peer = {"podSelector": {"matchLabels": {c.LABEL_ENVIRONMENTS_OF: job.name}}}
        ingress[1]["ports"].append({"port": c.GATEWAY_METRICS_PORT, "protocol": "TCP"})
        ingress.append({"from": [peer], "ports": [{"port": c.GATEWAY_PORT, "protocol": "TCP"}]})
    own: NetworkPolicySpec = {
        "podSelector": {"matchLabels": {c.LABEL_JOB: job.name}},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return _policy(job, job.name, own)


def _changed_egress(job: RLJob, observed: Observed, config: Config) -> list[Child]:
    """Render what environments need to reach others, where their runners were applied with something else."""
    seen = {one.name: observed.runners.get(one.name) for one in job.spec.environments}
    hashes = {name: runners.egress for name, runners in seen.items() if runners is not None}
    return _egress(
        job,
        [
            one
            for one in job.spec.environments
            if hashes.get(one.name) != egress.digest(job, one, config.network_policy)
        ],
        config,
    )


def _egress(job: RLJob, changed: Sequence[Environment], config: Config) -> list[Child]:
    """Render the policies of these environments, and of all. The proxy has a Service, keys and a policy."""
    found: list[Child] = []
    if not changed:
        return found
    if config.network_policy:
        found.append(_policy(job, c.environments_policy(job.name), egress.of_all(job)))
        for one in changed:
            found.append(_policy(job, c.environment_deployment(job.name, one.name), egress.of_one(job, one)))
    if egress.uses_proxy(job):
        found += [_secret(job, c.egress_secret_of(job.name, job.metadata.uid)), egress_proxy.service(job)]
        if config.network_policy:
            found.append(_policy(job, c.egress_proxy(job.name), egress.of_proxy(job)))
    return found


def _policy(job: RLJob, name: str, spec: NetworkPolicySpec) -> NetworkPolicy:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(job, name),
        "spec": spec,
    }


def _secret(job: RLJob, name: str) -> Secret:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(job, name), "type": "Opaque"}


def _metadata(job: RLJob, name: str) -> ObjectMeta:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {c.LABEL_JOB: job.name, c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE},
        "ownerReferences": [owner_reference(job)],
    }
