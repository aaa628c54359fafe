"""Security: what every pod and every container of the operator may not do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_operator.policies.pods.overlay import over

Json = dict[str, Any]

USER = 65532
"""User and group of every container of the operator."""

LOCKED: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""Security context of every container of the operator."""


def pod_security(user: Mapping[str, Any]) -> Json:
    """Return the security context of a pod. `user`: the template's pod spec."""
    return over(
        {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        user.get("securityContext"),
    )
