"""Running phase: assess the machines, change the pods, and end the job when it cannot go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from rljob_api.admission.last_accepted import accept
from rljob_api.spec import RLJob
from rljob_api.status import Member, RelayTopology, RLJobStatus, Role, TargetPhase
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod, Removal
from rljob_operator.policies.base.observation import Observed, Pod
from rljob_operator.policies.creation import Creation, Drafts
from rljob_operator.policies.failure.assessment import FailureAssessment, assess
from rljob_operator.policies.gang import gang_size, pod_groups
from rljob_operator.policies.kueue import admission as kueue_admission
from rljob_operator.policies.kueue import settlement
from rljob_operator.policies.lifecycle import drain, end, eviction
from rljob_operator.policies.phases.ended import end_job
from rljob_operator.policies.phases.steps import Plan, drain_since, incarnations, leading_to, whole_seconds
from rljob_operator.policies.pods import devices, egress_proxy, environments, manifests, owned_objects, pod_set
from rljob_operator.policies.pods.relay_membership import chain_length, locations, next_topology
from rljob_operator.policies.scaling import autoscaler
from rljob_operator.policies.scaling.target import choose_target
from rljob_operator.policies.status.builder import StatusBuilder
from rljob_operator.policies.status.stalled import find_stall_reason, stall_deadlines


def run(job: RLJob, observed: Observed, now: datetime, config: Config, refused_edit: ConditionReason | None) -> Plan:
    """Plan a job that may run: go on, or end it with the operator's outcome."""
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
        return end_job(job, observed, outcome, assessment.replacements, assessment.losses, now, config)
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
        pod_groups.next_check(job, observed, now),
        gang_size.next_check(status, now),
        *machine_set.assessment.moments,
        *eviction.ends(machine_set.departing),
        drain.drain_ends(status, job.spec),
        devices.next_check(pod_changes.obstacle, now),
    ]
    plan = leading_to(status, job, pod_changes.removals, machine_set.assessment.losses, moments, now)

    drafts = _drafts(job, observed, machine_set, pod_changes, config)
    return replace(
        plan,
        children=(
            *pod_groups.missing(job, observed),
            *owned_objects.missing(job, observed, machine_set.machines, pod_changes.created, config),
        ),
        creations=tuple(Creation(new, drafts) for new in pod_changes.created),
        deployments=(
            *egress_proxy.to_change(job, observed, config, runs=True),
            *environments.to_start(
                job,
                observed,
                {one.name: one.runners for one in status.environments},
                config,
                partial(kueue_admission.placed_runners, job, observed),
            ),
        ),
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
        runs=True,
        pods=sum(pod.live for pod in observed.pods) + len(pod_changes.created),
    )
    given_up = len(assessment.blocked)
    too_few = len(machine_set.machines) - given_up < job.spec.rollout.smallest
    stall = devices.explained(job, observed, find_stall_reason(observed, assessment.blocked, too_few, config, now))
    admission = kueue_admission.admission_condition(job, observed, machine_set.size.count)
    facts = replace(
        builder.facts(pod_changes.obstacle or stall, now, given_up), refused=refused_edit, admission=admission
    )
    target, history = choose_target(job, machine_set.machines, TargetPhase.RUN, machine_set.size.why)
    facts = replace(facts, stall=gang_size.explained(job, observed, facts.stall, config))
    updates = {
        "accepted": accept(job),
        "incarnations": incarnations(before, observed, pod_changes.created),
        "target": target,
        "parallelism": history,
        "elasticity": machine_set.size.history,
        "relay": pod_changes.relay,
        "replacements": assessment.replacements,
        "start_time": before.start_time or now,
        "active_since": before.active_since or now,
        "first_ready_time": before.first_ready_time or (now if facts.started else None),
        "drain_since": drain_since(before, target, now) if pod_changes.leaving else None,
    }
    return whole_seconds(builder.status(facts, now).model_copy(update=updates))
