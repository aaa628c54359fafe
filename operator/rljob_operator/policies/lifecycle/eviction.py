"""Pods that somebody else asks to go: `kubectl drain`, `kubectl delete pod`, a preemption.

Until its time is over, or it has handed over what it holds, such a pod stays a member.

- A rollout machine of mode Asynchronous hands over what it generates, and the target names another machine in its place
  at once. A round of mode OnPolicy waits for all its machines anyway, so there the machine gets its new pod at once.
- The trainer's last update is written to a checkpoint on a volume that the next pod finds. Both pods mount it, and one
  of them writes: so the new pod comes when the old one has gone. A checkpoint that dies with the pod is not worth the
  wait.
- The coordinator has the trainer write that checkpoint and closes its store. The next one comes when it has gone, for
  the same reason.

A kubelet whose node shuts down ends pods without a deletion. It runs their hooks and sends their signals all the same,
so a trainer there saves its last update too, as far as the kubelet's `shutdownGracePeriod` goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rljob_api.spec import PodTemplate, RLJobSpec
from rljob_api.spec_training import Mode
from rljob_api.status import RLJobStatus, Role
from rljob_operator.policies.base.decisions import Removal
from rljob_operator.policies.base.observation import Observed, Pod

END_SECONDS = 15
"""Of a pod's grace, what is left for its end after all is handed over."""


def hands_over(spec: RLJobSpec, role: Role) -> bool:
    """Whether pods of this role hand something over before they end."""
    match role:
        case Role.ROLLOUT:
            return spec.mode is Mode.ASYNCHRONOUS
        case Role.TRAINER:
            return spec.checkpoint.survives_pods
        case Role.COORDINATOR:
            return True


def template_of(spec: RLJobSpec, role: Role) -> PodTemplate:
    """The user's template for a role."""
    match role:
        case Role.COORDINATOR:
            return spec.coordinator.template
        case Role.TRAINER:
            return spec.trainer.template
        case Role.ROLLOUT:
            return spec.rollout.template


def grace_seconds(spec: RLJobSpec) -> int:
    """How long such a pod may take, where its template does not say."""
    return spec.run_policy.drain_seconds + END_SECONDS


def departing(observed: Observed, status: RLJobStatus, spec: RLJobSpec, now: datetime) -> tuple[Pod, ...]:
    """The pods that are on their way out with something to hand over. One that the operator itself has sent off is no
    member any more."""
    members = {(member.machine, member.incarnation) for member in status.members}
    return tuple(
        pod for pod in observed.pods if (pod.machine, pod.incarnation) in members and _may(pod, observed, spec, now)
    )


def staying(observed: Observed, status: RLJobStatus, spec: RLJobSpec, now: datetime) -> Observed:
    """With the pods marked that are departing and keep their place until they have gone."""
    kept = {pod.uid for pod in departing(observed, status, spec, now) if pod.role is not Role.ROLLOUT}
    return replace(observed, pods=tuple(replace(pod, staying=pod.uid in kept) for pod in observed.pods))


def shut_down(observed: Observed, spec: RLJobSpec) -> frozenset[str]:
    """Uids of the trainer's pods that end with their nodes, though nobody has deleted them."""
    nodes = {name for name, node in observed.nodes.items() if node.shutting_down}
    ending = (pod for pod in observed.pods if pod.node in nodes and pod.live and pod.phase == "Running")
    return frozenset(pod.uid for pod in ending if pod.role is Role.TRAINER and hands_over(spec, pod.role))


def _may(pod: Pod, observed: Observed, spec: RLJobSpec, now: datetime) -> bool:
    if not hands_over(spec, pod.role) or not pod.deleting or pod.phase != "Running":
        return False
    node = observed.nodes.get(pod.node) if pod.node is not None else None
    return pod.deletion is not None and now < pod.deletion and (node is None or node.ready)


def ends(pods: Sequence[Pod]) -> list[datetime | None]:
    """When their time is over."""
    return [pod.deletion for pod in pods]


def with_short_grace(removal: Removal, spec: RLJobSpec) -> Removal:
    """The operator's own deletion of a pod: there is nothing to hand over (any more), so nobody waits for that."""
    role = removal.pod.role
    short = hands_over(spec, role) and "terminationGracePeriodSeconds" not in template_of(spec, role).spec
    return replace(removal, grace_seconds=END_SECONDS) if short and removal.grace_seconds is None else removal
