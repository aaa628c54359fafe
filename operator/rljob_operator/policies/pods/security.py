"""Security: what every pod and every container of the operator may not do."""

from __future__ import annotations

from rljob_kube.manifests.pods import ContainerSecurity, PodSecurity, PodSpec
from rljob_operator.policies.pods.overlay import over

USER = 65532
"""User and group of every container of the operator."""

LOCKED: ContainerSecurity = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""Security context of every container of the operator."""


def pod_security(user: PodSpec) -> PodSecurity:
    """Return the security context of a pod. `user`: the template's pod spec."""
    ours: PodSecurity = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return over(ours, user.get("securityContext"))
