"""What a job owns besides pods: Service, ServiceAccount, Role, RoleBinding, Lease and NetworkPolicy, as manifests.

The Secret's data is random and therefore made by the shell that creates it; here is its frame.
"""

from __future__ import annotations

from typing import Any

from rljob_api import constants as c
from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.policies.config import Config
from rljob_operator.policies.names import account, auth_secret, owner_reference, selector_labels

Json = dict[str, Any]

COORDINATOR_RULES_JOB: list[Json] = [
    {"apiGroups": [c.GROUP], "resources": [c.PLURAL], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [c.GROUP], "resources": [f"{c.PLURAL}/status"], "verbs": ["get", "patch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update", "patch"]},
]
"""What a coordinator may do, each rule on objects of its job's name only."""


def children(job: RLJob, coordinator_incarnation: int, config: Config) -> list[Json]:
    """Everything that must be there before the pods. Deterministic: creating them again is harmless."""
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
            spec={"leaseDurationSeconds": config.lease_seconds, "leaseTransitions": 0},
        ),
    ]
    return [*found, _network_policy(job)] if config.network_policy else found


def service(job: RLJob, coordinator_incarnation: int) -> Json:
    """The stable name of the coordinator. It selects one incarnation: a pod that still terminates must not be found."""
    return _object(
        job,
        "v1",
        "Service",
        c.coordinator_service(job.name),
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # workers must find the head before it can be ready
            "selector": {
                **selector_labels(job.name, Role.COORDINATOR),
                c.LABEL_INCARNATION: str(coordinator_incarnation),
            },
            "ports": [
                {"name": "ray", "port": c.RAY_PORT, "protocol": "TCP"},
                {"name": "health", "port": c.HEALTH_PORT, "protocol": "TCP"},
            ],
        },
    )


def _network_policy(job: RLJob) -> Json:
    """Only pods of the job reach each other; anybody may read health and metrics. What they may call is left open."""
    return _object(
        job,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        job.name,
        spec={
            "podSelector": {"matchLabels": {c.LABEL_JOB: job.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {c.LABEL_JOB: job.name}}}]},
                {"ports": [{"port": c.HEALTH_PORT, "protocol": "TCP"}]},
            ],
        },
    )


def _object(job: RLJob, api_version: str, kind: str, name: str, **content: Any) -> Json:
    metadata = {
        "name": name,
        "namespace": job.namespace,
        "labels": {c.LABEL_JOB: job.name, c.LABEL_MANAGED_BY: c.MANAGED_BY_VALUE},
        "ownerReferences": [owner_reference(job)],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}
