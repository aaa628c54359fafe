"""Plan: what to do about one job, from its spec and the observed cluster. Pure, total and deterministic.

The order of execution is part of the plan: children, pods, status, deletions, events. Pods come before the status,
because their names are deterministic. Deletions come after it, because a deleted pod is the evidence of its own loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rljob_api.last_accepted import accept
from rljob_api.spec import RLJob
from rljob_api.status import (
    FinishedOutcome,
    Member,
    RelayTopology,
    Replacements,
    RLJobStatus,
    Role,
    Target,
    TargetPhase,
)
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.deadlines import earliest_wait, is_past
from rljob_operator.policies.base.decisions import Event, JobOutcome, NewPod, Removal
from rljob_operator.policies.base.kueue_objects import Hold
from rljob_operator.policies.base.observation import Observed, Pod
from rljob_operator.policies.creation import Creation, Drafts
from rljob_operator.policies.failure import losses as machine_losses
from rljob_operator.policies.failure import nodes
from rljob_operator.policies.failure.assessment import FailureAssessment, assess
from rljob_operator.policies.gang import gang_size, pod_groups
from rljob_operator.policies.kueue import admission as kueue_admission
from rljob_operator.policies.kueue import settlement
from rljob_operator.policies.lifecycle import drain, end, eviction
from rljob_operator.policies.pods import devices, manifests, owned_objects, pod_set
from rljob_operator.policies.pods.relay_membership import (
    chain_length,
    dissolved,
    locations,
    next_topology,
    without_lost,
)
from rljob_operator.policies.scaling import autoscaler
from rljob_operator.policies.scaling import machines as machine_scaling
from rljob_operator.policies.scaling.target import choose_target
from rljob_operator.policies.status import conditions
from rljob_operator.policies.status.builder import StatusBuilder
from rljob_operator.policies.status.events import forced_out, transitions
from rljob_operator.policies.status.stalled import find_stall_reason, stall_deadlines

Json = dict[str, Any]

REMOVED_SECONDS = 3.0
"""Seconds after which pods are listed again after a removal.

A pod that is gone before this process's watch has begun, or while the watch is broken, is in no event.
"""


@dataclass(frozen=True)
class Plan:
    """What to do, in this order, and when to plan again."""

    children: tuple[Json, ...] = ()
    creations: tuple[Creation, ...] = ()
    status: RLJobStatus | None = None
    """The operator's part, when it differs from the written one."""
    removals: tuple[Removal, ...] = ()
    events: tuple[Event, ...] = ()
    delete_job: bool = False
    again_seconds: float | None = None
    losses: tuple[machine_losses.MachineLoss, ...] = ()
    """The losses that the status counts for the first time."""
    asked: tuple[Json, ...] = ()
    """Workloads to create."""
    settled: tuple[settlement.Settlement, ...] = ()
    """Changes of Workloads, the last step."""
    idle: tuple[Removal, ...] = ()
    """Pods that wait for the coordinator, and are deleted if it may not be created."""

    @property
    def empty(self) -> bool:
        """Tell whether there is nothing to do."""
        steps = (self.children, self.creations, self.removals, self.events, self.asked, self.settled)
        return not any(steps) and not self.delete_job and self.status is None


def plan(
    job: RLJob, observed: Observed, now: datetime, config: Config, refused_edit: ConditionReason | None = None
) -> Plan:
    """Decide what to do about this job now.

    `job` has the accepted spec; `refused_edit` explains why a newer one does not hold.
    """
    if job.metadata.deletion_timestamp is not None:
        return Plan()
    observed = eviction.staying(observed.with_condemned(job.status), job.status, job.spec, now)
    decided = _decide(job, observed, now, config, refused_edit)
    stuck, moments = nodes.stuck(observed, job.spec.failure_policy.node_failure, now)
    if not decided.delete_job:
        removals = (*(eviction.with_short_grace(removal, job.spec) for removal in decided.removals), *stuck)
        idle = tuple(eviction.with_short_grace(removal, job.spec) for removal in decided.idle)
        decided = replace(decided, removals=removals, idle=idle, events=(*decided.events, *map(forced_out, stuck)))
    waits = (decided.again_seconds, earliest_wait(moments, now), REMOVED_SECONDS if decided.removals else None)
    return replace(decided, again_seconds=min((wait for wait in waits if wait is not None), default=None))


def _decide(
    job: RLJob, observed: Observed, now: datetime, config: Config, refused_edit: ConditionReason | None
) -> Plan:
    if job.status.ended:
        if is_past(end.ttl_expiry(job.spec, job.status), now):
            return Plan(delete_job=True)
        return _end(job, observed, _written_outcome(job.status), None, (), now)
    said = end.coordinator_outcome(job.status)
    if said is not None:
        return _end(job, observed, said, None, (), now)
    held = None if job.spec.suspend else kueue_admission.hold(job, observed, config)
    if job.spec.suspend or held is not None or _stopping(job, observed):
        return _suspend(job, observed, held, now, config, refused_edit)
    return _run(job, observed, now, config, refused_edit)


# --- a job that runs --------------------------------------------------------------------------------------------------


def _run(job: RLJob, observed: Observed, now: datetime, config: Config, refused_edit: ConditionReason | None) -> Plan:
    spec, before = job.spec, job.status
    targeted = before.target.machines if before.target is not None else ()
    working = {pod.machine for pod in observed.pods if pod.available}
    size = autoscaler.desired_machines_of_job(job, working, now)
    going = eviction.departing(observed, before, spec, now)
    barred = {pod.machine for pod in going}
    machines = kueue_admission.choose_machines(job, observed, targeted, size.count, set(targeted) - working, barred)
    why = size.why or kueue_admission.why_fewer(job, observed, targeted, machines)
    size = replace(size, why=why)
    placed = pod_set.placed_machines(spec, machines)
    assessment = assess(job, observed, placed, now, config)
    outcome = end.operator_outcome(spec, before, assessment.replacements, assessment.blocked, len(machines), now)
    if outcome is not None:
        return _end(job, observed, outcome, assessment.replacements, assessment.losses, now)
    return _go_on(job, observed, _MachineSet(machines, going, size, assessment), now, config, refused_edit)


@dataclass(frozen=True)
class _MachineSet:
    """Rollout machines of the target, and the assessment of all machines."""

    machines: tuple[str, ...]
    departing: tuple[Pod, ...]
    """Members that another client has deleted and that hand over their state."""
    size: autoscaler.MachineCount
    assessment: FailureAssessment


def _go_on(
    job: RLJob,
    observed: Observed,
    machine_set: _MachineSet,
    now: datetime,
    config: Config,
    refused_edit: ConditionReason | None,
) -> Plan:
    """Plan a job that has not ended."""
    pod_changes = _change_pods(job, observed, machine_set, now, config)
    status = _running(job, observed, machine_set, pod_changes, now, config, refused_edit)
    moments = [
        *end.deadlines(job.spec, status),
        *stall_deadlines(observed, config),
        pod_groups.look_again(job, observed, now),
        gang_size.look_again(status, now),
        *machine_set.assessment.moments,
        *eviction.ends(machine_set.departing),
        drain.drain_ends(status, job.spec),
        devices.look_again(pod_changes.obstacle, now),
    ]
    plan = _leading_to(status, job, pod_changes.removals, machine_set.assessment.losses, moments, now)

    drafts = _drafts(job, observed, machine_set, pod_changes, config)
    return replace(
        plan,
        children=(
            *pod_groups.missing(job, observed),
            *owned_objects.missing(job, observed, machine_set.machines, pod_changes.created, config),
        ),
        creations=tuple(Creation(new, drafts) for new in pod_changes.created),
        asked=settlement.asked(job, observed, machine_set.size.count, config),
        settled=settlement.settled(job, observed, machine_set.size.count, now, config),
        events=(*plan.events, *machine_set.assessment.events),
        idle=pod_set.idle(observed, pod_changes.created),
    )


def _drafts(
    job: RLJob, observed: Observed, machine_set: _MachineSet, pod_changes: _PodChanges, config: Config
) -> Drafts:
    """Render the shared parts of the new pods."""
    epoch, avoided = pod_changes.relay.epoch, machine_set.assessment.avoided
    roles = {
        role: manifests.render_role(job, role, epoch, config, pod_changes.shapes[role], avoided)
        for role in sorted({new.role for new in pod_changes.created})
    }
    return Drafts(job, observed, machine_set.machines, roles)


@dataclass(frozen=True)
class _PodChanges:
    """Changes of the pods and of their relay chain. `leaving`: pods that are still to be drained."""

    shapes: Mapping[Role, str]
    created: Sequence[NewPod]
    removals: Sequence[Removal]
    leaving: int
    members: tuple[Member, ...]
    relay: RelayTopology
    obstacle: ConditionReason | None
    """Why wanted pods are not created, or wait."""


def _change_pods(
    job: RLJob, observed: Observed, machine_set: _MachineSet, now: datetime, config: Config
) -> _PodChanges:
    spec, before, machines, assessment = job.spec, job.status, machine_set.machines, machine_set.assessment
    placed = pod_set.placed_machines(spec, machines)
    shapes = {role: manifests.shape(spec, role, config) for role in Role}
    outdated = pod_set.outdated_pods(placed, observed, shapes, assessment.avoided)
    wanted = pod_set.to_create(
        placed,
        observed,
        assessment.losses,
        outdated,
        before.incarnations,
        assessment.replacements,
        assessment.blocked,
        now,
    )
    barred = devices.obstacles(job, observed.devices)
    created = [new for new in wanted if new.role not in barred]
    gone = drain.drained_machines(observed, before, spec, now)
    removals = pod_set.to_remove(placed, observed, assessment.losses, outdated, gone)
    created = pod_groups.admitted(job, machines, observed, created)
    members = pod_set.members(observed, created, removals, machine_set.departing, eviction.shut_down(observed, spec))
    smallest = max(1, min(spec.rollout.smallest, len(machines) - len(assessment.blocked)))
    where = locations(observed, spec.relay.topology_keys)
    relay = next_topology(before.relay, before.members, members, machines, smallest, observed.highest_epoch, where)
    drained = [pod for pod in machine_set.departing if pod.role is Role.ROLLOUT]
    leaving = len(pod_set.leaving(placed, observed, removals)) + len(drained)
    return _PodChanges(shapes, created, removals, leaving, members, relay, devices.obstacle(barred, wanted, observed))


def _running(
    job: RLJob,
    observed: Observed,
    machine_set: _MachineSet,
    pod_changes: _PodChanges,
    now: datetime,
    config: Config,
    refused_edit: ConditionReason | None,
) -> RLJobStatus:
    before, assessment = job.status, machine_set.assessment
    builder = StatusBuilder(
        job=job,
        observed=observed,
        machines=machine_set.machines,
        members=pod_changes.members,
        chain_length=chain_length(
            pod_changes.relay, job.status.runtime.relay if job.status.runtime is not None else None
        ),
        losses=assessment.losses,
        leaving=pod_changes.leaving,
        shapes=pod_changes.shapes,
        paused=assessment.replacements.pause is not None,
        pods=sum(pod.live for pod in observed.pods) + len(pod_changes.created),
    )
    given_up = len(assessment.blocked)
    too_few = len(machine_set.machines) - given_up < job.spec.rollout.smallest
    stall = devices.explained(job, observed, find_stall_reason(observed, assessment.blocked, too_few, config, now))
    admission = kueue_admission.admission_condition(job, observed, machine_set.size.count)
    facts = replace(builder.facts(pod_changes.obstacle or stall, given_up), refused=refused_edit, admission=admission)
    target, history = choose_target(job, machine_set.machines, TargetPhase.RUN, machine_set.size.why)
    facts = replace(facts, stall=gang_size.explained(job, observed, facts.stall, config))
    updates = {
        "accepted": accept(job),
        "incarnations": _numbers(before, observed, pod_changes.created),
        "target": target,
        "parallelism": history,
        "elasticity": machine_set.size.history,
        "relay": pod_changes.relay,
        "replacements": assessment.replacements,
        "start_time": before.start_time or now,
        "active_since": before.active_since or now,
        "first_ready_time": before.first_ready_time or (now if facts.started else None),
        "drain_since": _drain_since(before, target, now) if pod_changes.leaving else None,
    }
    return _whole_seconds(builder.status(facts, now).model_copy(update=updates))


def _numbers(before: RLJobStatus, observed: Observed, created: Iterable[NewPod]) -> dict[str, int]:
    """Return the highest incarnation of each machine."""
    numbers = dict(before.incarnations)
    for pod in observed.pods:
        numbers[pod.machine] = max(pod.incarnation, numbers.get(pod.machine, 0))
    return numbers | {new.machine: new.incarnation for new in created}


def _drain_since(before: RLJobStatus, target: Target, now: datetime) -> datetime:
    """Return since when this target waits for machines to leave."""
    unchanged = before.target is not None and before.target.revision == target.revision
    return before.drain_since if unchanged and before.drain_since is not None else now


# --- a job that is suspended ------------------------------------------------------------------------------------------


def _stopping(job: RLJob, observed: Observed) -> bool:
    """Tell whether a suspension has begun and its pods still exist.

    It is completed even if the spec resumes by now: an edit during a suspension reaches the job only by new pods. Pods
    that no status counts yet belong to a resumption whose status was not written.
    """
    target, known = job.status.target, job.status.incarnations
    if target is None or target.phase is not TargetPhase.SUSPEND:
        return False
    return any(not pod.deleting and pod.incarnation <= known.get(pod.machine, 0) for pod in observed.pods)


def _suspend(
    job: RLJob,
    observed: Observed,
    held: Hold | None,
    now: datetime,
    config: Config,
    refused_edit: ConditionReason | None,
) -> Plan:
    spec, before = job.spec, job.status
    present = [pod for pod in observed.pods if not pod.deleting]
    targeted = before.target.machines if before.target is not None else ()
    rollout = targeted or machine_scaling.choose_machines((), machine_scaling.wanted_count(spec.rollout), ())
    stop = drain.may_suspend(observed, before, spec, now)
    waiting = bool(present) and not stop
    removals = [Removal(pod, "Suspended") for pod in present] if stop else []
    members = pod_set.members(observed, (), removals)
    target, history = choose_target(job, rollout, TargetPhase.SUSPEND)
    builder = StatusBuilder(
        job=job, observed=observed, machines=rollout, members=members, chain_length=0, pods=len(observed.pods)
    )
    facts = replace(builder.facts(None), suspending=True, refused=refused_edit, held=held)
    updates = {
        "accepted": accept(job),
        "incarnations": _numbers(before, observed, ()),
        # Without a target and without pods no coordinator can read it.
        "target": target if before.target is not None or present else None,
        "parallelism": history,
        "start_time": before.start_time or (now if present else None),
        "active_since": before.active_since if waiting else None,
        "first_ready_time": before.first_ready_time if waiting else None,
        "drain_since": _drain_since(before, target, now) if waiting else None,
        "relay": without_lost(before.relay, before.members, members, observed.highest_epoch)
        if waiting
        else dissolved(before.relay),
    }
    status = _whole_seconds(builder.status(facts, now).model_copy(update=updates))
    # No event reports a new flavor, priority class or claim template.
    lacking = held.stall if held is not None and held.stalled else None
    moments = [drain.drain_ends(status, spec), devices.look_again(lacking, now)]
    return replace(
        _leading_to(status, job, removals, (), moments, now),
        # Kueue counts the claims of the base, so their templates are created first.
        children=tuple(owned_objects.claim_templates(job, observed.devices)) if held is not None else (),
        asked=settlement.asked(job, observed, 0, config),
        settled=settlement.settled(job, observed, 0, now, config),
    )


# --- a job that has ended ---------------------------------------------------------------------------------------------


def _end(
    job: RLJob,
    observed: Observed,
    outcome: JobOutcome,
    replacements: Replacements | None,
    losses: Sequence[machine_losses.MachineLoss],
    now: datetime,
) -> Plan:
    before = job.status
    removals = end.pods_to_clean(job.spec.run_policy.clean_pod_policy, observed)
    builder = StatusBuilder(
        job=job,
        observed=observed,
        machines=before.target.machines if before.target is not None else (),
        members=pod_set.members(observed, (), removals),
        chain_length=0,
        losses=tuple(losses),
        pods=sum(pod.live for pod in observed.pods),
    )
    facts = replace(builder.facts(None), outcome=outcome)
    updates: dict[str, Any] = {"completion_time": before.completion_time or now, "drain_since": None}
    updates["relay"] = dissolved(before.relay)
    updates["incarnations"] = _numbers(before, observed, ())
    if replacements is not None:
        updates["replacements"] = replacements
    status = _whole_seconds(builder.status(facts, now).model_copy(update=updates))
    plan = _leading_to(status, job, removals, losses, [end.ttl_expiry(job.spec, status)], now)
    return replace(plan, settled=settlement.finished(job, observed, outcome, now))


def _written_outcome(status: RLJobStatus) -> JobOutcome:
    """Return the final outcome that the status holds."""
    failed = status.is_true(conditions.FAILED)
    condition = status.condition(conditions.FAILED if failed else conditions.COMPLETE)
    reason, message = (condition.reason, condition.message) if condition is not None else ("", "")
    return JobOutcome(FinishedOutcome.FAILED if failed else FinishedOutcome.COMPLETE, reason, message)


# --- the plan around a status ---------------------------------------------------------------------------------------


def _leading_to(
    status: RLJobStatus,
    job: RLJob,
    removals: Iterable[Removal],
    losses: Sequence[machine_losses.MachineLoss],
    moments: Iterable[datetime | None],
    now: datetime,
) -> Plan:
    """Make the plan that leads to this status. It is planned again at the first of the `moments`."""
    return Plan(
        status=changed(job, status),
        removals=tuple(removals),
        events=tuple(transitions(job.status, status, losses)),
        again_seconds=earliest_wait(moments, now),
        losses=tuple(losses),
    )


# --- the status as it goes over the wire ------------------------------------------------------------------------------


def _whole_seconds(status: RLJobStatus) -> RLJobStatus:
    """Round times as the API server returns them."""
    return RLJobStatus.model_validate(status.to_dict())


def changed(job: RLJob, status: RLJobStatus) -> RLJobStatus | None:
    """Return the operator's part if it differs from the written one."""
    mine = status.model_copy(update={"runtime": None})
    return None if mine == job.status.model_copy(update={"runtime": None}) else mine
