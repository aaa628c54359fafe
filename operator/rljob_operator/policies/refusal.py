"""What becomes of a plan when the API server refuses a part of it: a pod beyond the quota, a name that is taken.

Pods are made role by role, each as soon as the server has accepted those before it, whether they run or not. So a job
below its quota keeps no trainer that waits for a coordinator, and no rollout machine that waits for a trainer. One that
loses its coordinator, and may not have another, gives back what does nothing without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from rljob_api.constants import ROLE_COORDINATOR, machine_name
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus, Role
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.deadlines import deadline, is_past
from rljob_operator.policies.base.decisions import WARNING, Event, Removal
from rljob_operator.policies.creation import Creation
from rljob_operator.policies.plan import Plan, changed
from rljob_operator.policies.pods.relay_membership import dissolved
from rljob_operator.policies.status import conditions
from rljob_operator.policies.status.events import transitions

PATIENCE_SECONDS: Mapping[Role, float] = {Role.ROLLOUT: 30.0, Role.TRAINER: 120.0}
"""So long pods keep their places while the coordinator's is refused: what an old one held is counted for a while, and a
trainer is worth more than the rollout machines, whose places may be enough."""

_COORDINATOR = machine_name(ROLE_COORDINATOR, 0)


def in_order(creations: Sequence[Creation]) -> Iterator[tuple[Creation, ...]]:
    """The pods of one role after the other; those of a role make no sense without those before."""
    for role in (Role.COORDINATOR, Role.TRAINER, Role.ROLLOUT):
        found = tuple(creation for creation in creations if creation.new.role is role)
        if found:
            yield found


def pod_refusal(status: int, message: str) -> ConditionReason:
    """What the API server's refusal of a pod means, as the reason of Stalled."""
    if status == 403:
        quota = "exceeded quota" in message
        return no_priority_class(message) or ConditionReason("QuotaExceeded" if quota else "PodForbidden", message)
    return ConditionReason("PodInvalid", message)


def no_priority_class(message: str) -> ConditionReason | None:
    """The trouble where the server has no PriorityClass of the name that the object has."""
    if "no PriorityClass" not in message:
        return None
    advice = "create it, or name another one in spec.scheduling.priorityClassName or in the pod template"
    return ConditionReason("PriorityClassMissing", f"{message}; {advice}")


def refused(before: Plan, job: RLJob, refusals: Mapping[str, ConditionReason], now: datetime) -> Plan:
    """The plan after the API server would not take the pods of these machines: they are no members, neither are those
    that would have come after them, their numbers stay free, and the job is Stalled."""
    status = before.status
    if status is None or not refusals:
        return before
    unmade = _unmade(before.creations, refusals)
    # The number before it was given to a pod, perhaps one whose loss this very status counts.
    free = {c.new.machine: c.new.incarnation - 1 for c in before.creations if c.new.machine in unmade}
    incarnations = {machine: number for machine, number in {**status.incarnations, **free}.items() if number}
    stall = _told(refusals, unmade)
    idle = _given_back(before, job.status, stall, now) if _COORDINATOR in refusals else ()
    gone = unmade | {removal.pod.machine for removal in idle}
    members = tuple(m for m in status.members if m.machine not in gone)
    chain = {"relay": dissolved(status.relay)} if idle else {}
    status = status.model_copy(update={"members": members, "incarnations": incarnations, **chain})
    found = stalled(before, job, status, stall, now)
    if not idle:
        return found
    message = f"{len(idle)} pods wait for a coordinator, whose pod is refused: {', '.join(sorted(_names(idle)))}"
    event = Event(WARNING, "MachinesGivenBack", message)
    return replace(found, removals=(*found.removals, *idle), events=(*found.events, event))


def stalled(before: Plan, job: RLJob, status: RLJobStatus, stall: ConditionReason, now: datetime) -> Plan:
    """The plan with this status, Stalled for a reason found while carrying it out."""
    status = conditions.stalled_now(status, job.status, stall, job.metadata.generation, now)
    events = tuple(transitions(job.status, status, before.losses))
    return replace(before, status=changed(job, status), events=events)


def _unmade(creations: Sequence[Creation], refusals: Mapping[str, ConditionReason]) -> frozenset[str]:
    """The machines that get no pod: the refused ones, and those of the roles after them."""
    groups = list(in_order(creations))
    first = next((n for n, group in enumerate(groups) if any(c.new.machine in refusals for c in group)), len(groups))
    later = {creation.new.machine for group in groups[first + 1 :] for creation in group}
    return frozenset(later.union(refusals))


def _told(refusals: Mapping[str, ConditionReason], unmade: frozenset[str]) -> ConditionReason:
    worst = next(iter(refusals.values()))
    waiting = len(unmade) - len(refusals)
    more = f"; {waiting} more pods are not made before" if waiting else ""
    return replace(worst, message=f"{', '.join(sorted(refusals)[:3])}: {worst.message}{more}")


def _given_back(before: Plan, written: RLJobStatus, stall: ConditionReason, now: datetime) -> tuple[Removal, ...]:
    """Of the pods that wait for the coordinator those that have waited long enough."""
    told, ready = written.condition(conditions.STALLED), written.condition(conditions.READY)
    if told is None or told.reason != stall.reason or ready is None or written.is_true(conditions.READY):
        return ()
    moments = [c.last_transition_time for c in (told, ready) if c.last_transition_time is not None]
    since, going = max(moments, default=None), {removal.pod.uid for removal in before.removals}
    late = {role for role, seconds in PATIENCE_SECONDS.items() if is_past(deadline(since, seconds), now)}
    return tuple(r for r in before.idle if r.pod.role in late and r.pod.uid not in going)


def _names(removals: Sequence[Removal]) -> set[str]:
    return {removal.pod.machine for removal in removals}
