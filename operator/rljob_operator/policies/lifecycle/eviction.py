"""Eviction: pods that another client deletes: `kubectl drain`, `kubectl delete pod`, or a preemption.

Such a pod stays a member until it has handed over its state, or its grace period is over.

- A rollout machine of mode Asynchronous hands over its responses, and the target names another machine immediately. A
  round of mode OnPolicy waits for all its machines anyway, so there the machine gets its new pod immediately.
- The trainer writes its last update to a checkpoint on a volume that the next pod mounts. Only one of them may write,
  so the new pod is created when the old one is gone. A checkpoint that is lost with the pod is not worth the wait.
- The coordinator has the trainer write that checkpoint, and closes its store. Its next pod is created when it is gone,
  for the same reason.

A kubelet whose node shuts down ends pods without a deletion. It runs their hooks and sends their signals, so a trainer
there saves its last update too, within the kubelet's `shutdownGracePeriod`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rljob_api.spec import PodTemplate, RLJobSpec
from rljob_api.spec.training import Mode
from rljob_api.status import RLJobStatus, Role
from rljob_operator.policies.base.decisions import Removal
from rljob_operator.policies.base.observation import Observed, Pod

END_SECONDS = 15
"""Part of a pod's grace period that is left for its end after the handover."""


def drains(spec: RLJobSpec, role: Role) -> bool:
    """Return whether pods of this role drain: they transfer their state before they end."""
    match role:
        case Role.ROLLOUT:
            return spec.mode is Mode.ASYNCHRONOUS
        case Role.TRAINER:
            return spec.checkpoint.survives_pods
        case Role.COORDINATOR:
            return True


def template_of(spec: RLJobSpec, role: Role) -> PodTemplate:
    """Return the user's template of a role."""
    match role:
        case Role.COORDINATOR:
            return spec.coordinator.template
        case Role.TRAINER:
            return spec.trainer.template
        case Role.ROLLOUT:
            return spec.rollout.template


def grace_seconds(spec: RLJobSpec) -> int:
    """Return the grace period of such a pod, where its template sets none."""
    return spec.run_policy.drain_seconds + END_SECONDS


def departing(observed: Observed, status: RLJobStatus, spec: RLJobSpec, now: datetime) -> tuple[Pod, ...]:
    """Return the members that are being deleted and still hand over their state.

    A pod that the operator itself has deleted is no member any more.
    """
    members = {(member.machine, member.incarnation) for member in status.members}
    return tuple(
        pod for pod in observed.pods if (pod.machine, pod.incarnation) in members and _may(pod, observed, spec, now)
    )


def staying(observed: Observed, status: RLJobStatus, spec: RLJobSpec, now: datetime) -> Observed:
    """Mark the departing pods that remain members until they are gone."""
    kept = {pod.uid for pod in departing(observed, status, spec, now) if pod.role is not Role.ROLLOUT}
    return replace(observed, pods=tuple(replace(pod, staying=pod.uid in kept) for pod in observed.pods))


def shut_down(observed: Observed, spec: RLJobSpec) -> frozenset[str]:
    """Return the uids of the trainer's pods that end with their nodes, without a deletion."""
    nodes = {name for name, node in observed.nodes.items() if node.shutting_down}
    ending = (pod for pod in observed.pods if pod.node in nodes and pod.live and pod.phase == "Running")
    return frozenset(pod.uid for pod in ending if pod.role is Role.TRAINER and drains(spec, pod.role))


def _may(pod: Pod, observed: Observed, spec: RLJobSpec, now: datetime) -> bool:
    if not drains(spec, pod.role) or not pod.deleting or pod.phase != "Running":
        return False
    node = observed.nodes.get(pod.node) if pod.node is not None else None
    return pod.deletion is not None and now < pod.deletion and (node is None or node.ready)


def ends(pods: Sequence[Pod]) -> list[datetime | None]:
    """Return when their grace periods end."""
    return [pod.deletion for pod in pods]


def with_short_grace(removal: Removal, spec: RLJobSpec) -> Removal:
    """Shorten the grace period of the operator's own deletion: the pod has nothing left to hand over."""
    role = removal.pod.role
    short = drains(spec, role) and "terminationGracePeriodSeconds" not in template_of(spec, role).spec
    return replace(removal, grace_seconds=END_SECONDS) if short and removal.grace_seconds is None else removal
