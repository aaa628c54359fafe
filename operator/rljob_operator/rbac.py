"""RBAC: all rights of the operator. A test compares the chart with these rules.

`JOB_RULES` hold in every namespace with jobs: as a ClusterRole, or in namespaced mode as a Role in each. `GANG_RULES`
hold there too, for the schedulers that are enabled. `LEADER_RULES` hold in the operator's own namespace, `NODE_RULES`
cluster-wide or not at all.

Secrets can be created and never read. Cluster-wide, the right to read Leases includes those of nodes (kube-node-lease);
a namespaced operator has no such right. Leases may be updated only because the operator grants that right to
coordinators: a right that is granted must be held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_api.constants import GROUP, PLURAL
from rljob_api.spec import Gang
from rljob_operator.policies.gang import pod_groups

Rule = dict[str, list[str]]


def _rule(group: str, resources: list[str], verbs: list[str]) -> Rule:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


JOB_RULES: list[Rule] = [
    _rule(GROUP, [PLURAL], ["get", "list", "watch", "delete"]),
    _rule(GROUP, [f"{PLURAL}/status"], ["get", "patch"]),
    _rule(GROUP, [f"{PLURAL}/finalizers"], ["update"]),  # wanted where owner references are checked, as in OpenShift
    _rule("", ["pods"], ["get", "list", "watch", "create", "delete"]),
    _rule("apps", ["deployments"], ["get", "list", "watch", "create", "patch"]),
    _rule("", ["services"], ["get", "create", "patch"]),
    _rule("", ["serviceaccounts"], ["get", "create"]),
    _rule("", ["secrets"], ["create"]),
    _rule("", ["events"], ["get", "create", "patch"]),
    _rule("rbac.authorization.k8s.io", ["roles"], ["get", "create", "patch"]),
    _rule("rbac.authorization.k8s.io", ["rolebindings"], ["get", "create"]),
    _rule("coordination.k8s.io", ["leases"], ["get", "list", "create", "update", "patch"]),
    _rule("networking.k8s.io", ["networkpolicies"], ["get", "create", "patch"]),
    _rule("policy", ["poddisruptionbudgets"], ["get", "create", "patch"]),
    _rule("resource.k8s.io", ["resourceclaimtemplates"], ["get", "create"]),
]
"""In every namespace with jobs."""

KUEUE_RULES: list[Rule] = [
    _rule("kueue.x-k8s.io", ["workloads"], ["get", "list", "create", "delete"]),
    _rule("kueue.x-k8s.io", ["workloads/status"], ["get", "patch"]),
]
"""In every namespace with jobs that name a queue; only with the chart's `kueue.enabled`."""

QUOTA_RULES: list[Rule] = [
    _rule("kueue.x-k8s.io", ["resourceflavors", "workloadpriorityclasses"], ["get"]),
    _rule("scheduling.k8s.io", ["priorityclasses"], ["get"]),
]
"""Cluster-wide, with `KUEUE_RULES`: flavors and priority classes."""

GANG_RULES: Mapping[Gang, list[Rule]] = {
    kind: [_rule(system.group, [pod_groups.PLURAL], ["get", "create", "patch"])]
    for kind, system in pod_groups.SYSTEMS.items()
}
"""In every namespace with jobs, for each scheduler in the chart's value gangScheduling."""

NODE_RULES: list[Rule] = [_rule("", ["nodes"], ["get", "list", "watch"])]
"""Cluster-wide only: readiness of nodes. Without it only suspects and pods show a lost machine."""

LEADER_RULES: list[Rule] = [_rule("coordination.k8s.io", ["leases"], ["get", "create", "update"])]
"""In the operator's own namespace: leader election."""


def allows(rules: list[Rule], group: str, resource: str, verb: str) -> bool:
    """Tell whether these rules allow a verb on a resource."""
    return any(group in r["apiGroups"] and resource in r["resources"] and verb in r["verbs"] for r in rules)


def manifest_rules(rules: list[Rule]) -> list[dict[str, Any]]:
    """Return the rules as a Role holds them."""
    return [dict(rule) for rule in rules]
