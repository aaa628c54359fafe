"""Machines whose pod somebody else asks to go: `kubectl drain`, `kubectl delete pod`, a preemption.

In mode Asynchronous such a machine can hand over what it generates: until its time is over, or it is empty, its pod
stays a member, and the target names another machine in its place at once. A round of mode OnPolicy waits for all its
machines anyway, so there the machine keeps its name and gets its new pod at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rljob_api.learning import Mode
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobStatus, Role
from rljob_operator.policies.observed import Observed, Pod
from rljob_operator.policies.placement import Removal

END_SECONDS = 15
"""Of a pod's grace, what is left for its end after the machine is empty."""


def hands_over(spec: RLJobSpec, role: Role) -> bool:
    """Whether pods of this role wait until they are empty before they end."""
    return spec.mode is Mode.ASYNCHRONOUS and role is Role.ROLLOUT


def grace_seconds(spec: RLJobSpec) -> int:
    """How long such a pod may take, where its template does not say."""
    return spec.run_policy.drain_seconds + END_SECONDS


def departing(seen: Observed, status: RLJobStatus, spec: RLJobSpec, now: datetime) -> tuple[Pod, ...]:
    """The pods that are on their way out with something to hand over. One that the operator itself has sent off is no
    member any more."""
    members = {(member.machine, member.incarnation) for member in status.members}
    return tuple(pod for pod in seen.pods if (pod.machine, pod.incarnation) in members and _may(pod, seen, spec, now))


def _may(pod: Pod, seen: Observed, spec: RLJobSpec, now: datetime) -> bool:
    if not hands_over(spec, pod.role) or not pod.deleting or pod.phase != "Running":
        return False
    node = seen.nodes.get(pod.node) if pod.node is not None else None
    return pod.deletion is not None and now < pod.deletion and (node is None or node.ready)


def ends(pods: Sequence[Pod]) -> list[datetime | None]:
    """When their time is over."""
    return [pod.deletion for pod in pods]


def briefly(removal: Removal, spec: RLJobSpec) -> Removal:
    """The operator's own deletion of a pod: there is nothing to hand over (any more), so nobody waits for that."""
    short = hands_over(spec, removal.pod.role) and "terminationGracePeriodSeconds" not in spec.rollout.template.spec
    return replace(removal, grace_seconds=END_SECONDS) if short and removal.grace_seconds is None else removal
