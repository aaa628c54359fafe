"""Refusal: changes a plan when the API server refuses a part of it, e.g. a pod above the quota or a taken name.

Pods are created role by role, each role once the server has accepted the one before. So a job below its quota holds no
trainer that waits for a coordinator, and no rollout machine that waits for a trainer. A job that loses its coordinator,
and may not create another, deletes the pods that are idle without it.
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
from rljob_operator.policies.phases.steps import Plan, changed
from rljob_operator.policies.pods.relay_membership import dissolved
from rljob_operator.policies.status import conditions
from rljob_operator.policies.status.events import transitions

PATIENCE_SECONDS: Mapping[Role, float] = {Role.ROLLOUT: 30.0, Role.TRAINER: 120.0}
"""Seconds for which pods stay while the coordinator's is refused.

A quota counts an old pod for a while. A trainer stays longer: the places of the rollout machines may be enough.
"""

_COORDINATOR = machine_name(ROLE_COORDINATOR, 0)


def in_order(creations: Sequence[Creation]) -> Iterator[tuple[Creation, ...]]:
    """Yield the pods of one role after the other. Pods of a role are useless without the roles before."""
    for role in (Role.COORDINATOR, Role.TRAINER, Role.ROLLOUT):
        found = tuple(creation for creation in creations if creation.new.role is role)
        if found:
            yield found


def refused(before: Plan, job: RLJob, refusals: Mapping[str, ConditionReason], now: datetime) -> Plan:
    """Return the plan after the API server has refused the pods of these machines.

    They are no members, nor are the pods of later roles. Their numbers stay free, and the job is Stalled.
    """
    status = before.status
    if status is None or not refusals:
        return before
    unmade = _unmade(before.creations, refusals)
    # The number below belongs to a pod, perhaps to one whose loss this status counts.
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
    """Return the plan with this status, Stalled for a reason found during execution."""
    status = conditions.stalled_now(status, job.status, stall, job.metadata.generation, now)
    events = tuple(transitions(job.status, status, before.losses))
    return replace(before, status=changed(job, status), events=events)


def _unmade(creations: Sequence[Creation], refusals: Mapping[str, ConditionReason]) -> frozenset[str]:
    """Return the machines without a pod: the refused ones, and those of later roles."""
    groups = list(in_order(creations))
    first = next((n for n, group in enumerate(groups) if any(c.new.machine in refusals for c in group)), len(groups))
    later = {creation.new.machine for group in groups[first + 1 :] for creation in group}
    return frozenset(later.union(refusals))


def _told(refusals: Mapping[str, ConditionReason], unmade: frozenset[str]) -> ConditionReason:
    worst = next(iter(refusals.values()))
    waiting = len(unmade) - len(refusals)
    more = f"; {waiting} more pods are not created before it" if waiting else ""
    return replace(worst, message=f"{', '.join(sorted(refusals)[:3])}: {worst.message}{more}")


def _given_back(before: Plan, written: RLJobStatus, stall: ConditionReason, now: datetime) -> tuple[Removal, ...]:
    """Return the removals of pods that have waited for the coordinator too long."""
    written_stall, ready = written.condition(conditions.STALLED), written.condition(conditions.READY)
    if (
        written_stall is None
        or written_stall.reason != stall.reason
        or ready is None
        or written.is_true(conditions.READY)
    ):
        return ()
    moments = [c.last_transition_time for c in (written_stall, ready) if c.last_transition_time is not None]
    since, going = max(moments, default=None), {removal.pod.uid for removal in before.removals}
    late = {role for role, seconds in PATIENCE_SECONDS.items() if is_past(deadline(since, seconds), now)}
    return tuple(r for r in before.idle if r.pod.role in late and r.pod.uid not in going)


def _names(removals: Sequence[Removal]) -> set[str]:
    return {removal.pod.machine for removal in removals}
