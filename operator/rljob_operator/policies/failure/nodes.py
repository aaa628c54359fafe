"""Nodes: since when they are not ready, which of them the job avoids, and which of their pods are deleted by force.

Times are the operator's own, because clocks of nodes may differ. The status holds since when a node has been observed
as not ready. An operator that serves single namespaces sees no nodes; there only the avoidance of suspected nodes
applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from rljob_api.constants import KEEPS_FAILING
from rljob_api.spec import ForceDelete, NodeFailure
from rljob_api.status import AvoidedNode, NotReadyNode, Replacements
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.deadlines import deadline, is_past
from rljob_operator.policies.base.decisions import Removal
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.failure.losses import MachineLoss

MOST_AVOIDED = 64
"""Largest number of avoided nodes: each is a line in every new pod. The oldest are used again."""


def not_ready(before: Replacements | None, observed: Observed, now: datetime) -> tuple[NotReadyNode, ...]:
    """Find the nodes of the job's pods that are not ready or deleted, and since when."""
    known = {node.name: node for node in before.not_ready_nodes} if before is not None else {}
    hosts = sorted({pod.node for pod in observed.pods if pod.live and pod.node is not None})
    failed = [name for name in hosts if name in observed.nodes and not observed.nodes[name].ready]
    return tuple(known.get(name) or NotReadyNode(name=name, since=now) for name in failed)


def dead(failed: Iterable[NotReadyNode], policy: NodeFailure, now: datetime) -> frozenset[str]:
    """Return the nodes that have not been ready for longer than their grace period."""
    return frozenset(node.name for node in failed if is_past(deadline(node.since, policy.grace_seconds), now))


def graces(failed: Iterable[NotReadyNode], policy: NodeFailure) -> list[datetime | None]:
    """Return the ends of the grace periods."""
    return [deadline(node.since, policy.grace_seconds) for node in failed]


# --- avoiding ---------------------------------------------------------------------------------------------------------


def avoid(
    before: Replacements | None, losses: Iterable[MachineLoss], policy: NodeFailure, now: datetime
) -> tuple[AvoidedNode, ...]:
    """Add the nodes of these losses to the avoided nodes, sorted by their end."""
    kept = {node.name: node for node in before.avoided_nodes if not is_past(node.until, now)} if before else {}
    until = now + timedelta(seconds=policy.avoid_failed_nodes_seconds)
    for loss in losses:
        name = loss.pod.node if loss.pod is not None else None
        if name is not None and until > now and (loss.doubted or loss.unsettled or loss.reason == KEEPS_FAILING):
            kept[name] = AvoidedNode(name=name, until=until, reason=loss.reason)
    return tuple(sorted(kept.values(), key=lambda node: (node.until, node.name))[-MOST_AVOIDED:])


def forgive(
    avoided: Sequence[AvoidedNode], observed: Observed, config: Config, now: datetime
) -> tuple[tuple[AvoidedNode, ...], str | None]:
    """Return the avoided nodes without one that is used again early, and its name.

    A node is forgiven when a pod that avoids it has found no node for a while. A node that is known to be ready is
    chosen before an unknown one, and the oldest failure first. A node that is known not to be ready is not chosen.
    """
    homeless = [pod for pod in observed.pods if pod.live and pod.unschedulable is not None]
    patient = [pod for pod in homeless if is_past(deadline(pod.created, config.unschedulable_grace_seconds), now)]
    blamed = {name for pod in patient for name in pod.avoids}
    usable = [node for node in avoided if node.name in blamed and _may_serve(node.name, observed)]
    if not usable:
        return tuple(avoided), None
    # `avoided` is sorted by the time of failure.
    chosen = min(usable, key=lambda node: node.name not in observed.nodes).name
    return tuple(node for node in avoided if node.name != chosen), chosen


def _may_serve(name: str, observed: Observed) -> bool:
    return name not in observed.nodes or observed.nodes[name].ready


# --- deleting by force ------------------------------------------------------------------------------------------------


def stuck(observed: Observed, policy: NodeFailure, now: datetime) -> tuple[list[Removal], list[datetime | None]]:
    """Find deleted pods whose end no kubelet will report, and when there may be more.

    They do not block replacements, which have new names. But they hold volumes, and a suspended job waits for them.

    A node is fenced when its Node is deleted or has the out-of-service taint: nothing runs there any more.
    """
    removals, moments = [], list[datetime | None]()
    for pod in observed.pods:
        node = observed.nodes.get(pod.node) if pod.node is not None else None
        if not pod.deleting or node is None or node.ready or policy.force_delete is ForceDelete.NEVER:
            continue
        if node.gone or node.fenced:
            removals.append(Removal(pod, "NodeFenced", grace_seconds=0))
        elif policy.force_delete is ForceDelete.ALWAYS:
            end = deadline(pod.deletion, policy.grace_seconds)
            if end is None or is_past(end, now):
                removals.append(Removal(pod, "NodeNotReady", grace_seconds=0))
            moments.append(end)
    return removals, moments


# --- the affinity of a new pod ----------------------------------------------------------------------------------------


def affinity(user: Mapping[str, object] | None, avoided: Sequence[str]) -> dict[str, object]:
    """Add the avoided nodes to the template's affinity."""
    mine = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in avoided]
    merged = dict(user or {})
    node = _object(merged.get("nodeAffinity"))
    required = _object(node.get(_REQUIRED))
    given = required.get("nodeSelectorTerms")
    # Terms are alternatives, so each must exclude the nodes. An empty term matches no node, and stays empty.
    terms = [_without(term, mine) for term in given if isinstance(term, dict)] if isinstance(given, list) else []
    node[_REQUIRED] = {**required, "nodeSelectorTerms": terms or [{"matchFields": mine}]}
    return {**merged, "nodeAffinity": node}


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _without(term: Mapping[str, object], mine: Sequence[object]) -> dict[str, object]:
    fields = term.get("matchFields")
    if not term.get("matchExpressions") and not fields:
        return dict(term)
    return {**term, "matchFields": [*(fields if isinstance(fields, list) else []), *mine]}


def _object(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}
