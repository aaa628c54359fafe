"""What the operator may do, and nothing more: the one source that the chart is compared with.

`JOB_RULES` hold in every namespace with jobs: as a ClusterRole, or (namespaced mode) as a Role in each; `GANG_RULES`
likewise, of the schedulers that are asked for. `LEADER_RULES` hold in the operator's own namespace, `NODE_RULES`
cluster-wide or not at all. Secrets can be created and never read. Cluster-wide, to read Leases takes in those of the
nodes (kube-node-lease); an operator that serves single namespaces does without these. Leases may be updated only
because the operator hands that right on to coordinators, which the API server allows to those who have it.
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
"""Wherever there are jobs."""

KUEUE_RULES: list[Rule] = [
    _rule("kueue.x-k8s.io", ["workloads"], ["get", "list", "create", "delete"]),
    _rule("kueue.x-k8s.io", ["workloads/status"], ["get", "patch"]),
]
"""Wherever there are jobs that ask Kueue for quota; only with the chart's `kueue.enabled`."""

QUOTA_RULES: list[Rule] = [
    _rule("kueue.x-k8s.io", ["resourceflavors", "workloadpriorityclasses"], ["get"]),
    _rule("scheduling.k8s.io", ["priorityclasses"], ["get"]),
]
"""Cluster-wide, with these: which nodes a quota stands for, and how urgent a job is."""

GANG_RULES: Mapping[Gang, list[Rule]] = {
    kind: [_rule(system.group, [pod_groups.PLURAL], ["get", "create", "patch"])]
    for kind, system in pod_groups.SYSTEMS.items()
}
"""Wherever there are jobs, for each scheduler that the chart's value gangScheduling names."""

NODE_RULES: list[Rule] = [_rule("", ["nodes"], ["get", "list", "watch"])]
"""Cluster-wide only: which nodes are ready. Without them machines are judged by suspects and pods alone."""

LEADER_RULES: list[Rule] = [_rule("coordination.k8s.io", ["leases"], ["get", "create", "update"])]
"""In the operator's own namespace: the election of the leader."""


def allows(rules: list[Rule], group: str, resource: str, verb: str) -> bool:
    """Whether these rules allow a verb on a resource."""
    return any(group in r["apiGroups"] and resource in r["resources"] and verb in r["verbs"] for r in rules)


def manifest_rules(rules: list[Rule]) -> list[dict[str, Any]]:
    """The rules as they stand in a Role."""
    return [dict(rule) for rule in rules]
