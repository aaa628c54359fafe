"""The decision about one job: from what is asked and what is seen to what is to be done. Pure, total, deterministic.

The order in which a plan is carried out is part of it: children, pods, status, deletions, events. Pods come before the
status because their names are deterministic, deletions after it because a deleted pod is the evidence of its own loss.
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
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.deadlines import earliest_wait, passed
from rljob_operator.policies.base.decisions import Event, NewPod, Removal, Verdict
from rljob_operator.policies.base.kueue_objects import Hold
from rljob_operator.policies.base.observation import Observed, Pod
from rljob_operator.policies.base.stall_reason import Trouble
from rljob_operator.policies.creation import Creation, Drafts
from rljob_operator.policies.failure import losses as machine_losses
from rljob_operator.policies.failure import nodes
from rljob_operator.policies.failure.assessment import Judgement, judge
from rljob_operator.policies.gang import gang_size, pod_groups
from rljob_operator.policies.kueue import admission as kueue_admission
from rljob_operator.policies.kueue import settlement
from rljob_operator.policies.lifecycle import drain, end, eviction
from rljob_operator.policies.pods import devices, manifests, owned_objects, pod_set
from rljob_operator.policies.pods.relay_membership import chained, disbanded, locations, next_topology, shortened
from rljob_operator.policies.scaling import autoscaler
from rljob_operator.policies.scaling import machines as machine_scaling
from rljob_operator.policies.scaling.target import aim
from rljob_operator.policies.status import conditions
from rljob_operator.policies.status.builder import Report
from rljob_operator.policies.status.events import forced_out, transitions
from rljob_operator.policies.status.stalled import find_trouble, impatient_moments

Json = dict[str, Any]

REMOVED_SECONDS = 3.0
"""After a removal the pods are looked at again so soon: a pod that goes before this process's watch has begun, or while
it is broken, is in no event."""


@dataclass(frozen=True)
class Plan:
    """What to do, in this order, and when to look again."""

    children: tuple[Json, ...] = ()
    creations: tuple[Creation, ...] = ()
    status: RLJobStatus | None = None
    """The operator's part, when it differs from what is written."""
    removals: tuple[Removal, ...] = ()
    events: tuple[Event, ...] = ()
    delete_job: bool = False
    again_seconds: float | None = None
    losses: tuple[machine_losses.Loss, ...] = ()
    """The losses that the status counts for the first time."""
    asked: tuple[Json, ...] = ()
    """Workloads to make: quota that is asked for."""
    settled: tuple[settlement.Settlement, ...] = ()
    """What is told to Kueue, last of all."""
    idle: tuple[Removal, ...] = ()
    """Pods that wait for the coordinator, and go where it may not be made."""

    @property
    def empty(self) -> bool:
        """Nothing to do."""
        steps = (self.children, self.creations, self.removals, self.events, self.asked, self.settled)
        return not any(steps) and not self.delete_job and self.status is None


def plan(job: RLJob, seen: Observed, now: datetime, config: Config, refused_edit: Trouble | None = None) -> Plan:
    """What to do about this job now. `job` carries the accepted spec, `refused_edit` says why a newer one does not
    hold."""
    if job.metadata.deletion_timestamp is not None:
        return Plan()
    judged = eviction.staying(seen.judged_by(job.status), job.status, job.spec, now)
    decided = _decide(job, judged, now, config, refused_edit)
    stuck, moments = nodes.stuck(seen, job.spec.failure_policy.node_failure, now)
    if not decided.delete_job:
        removals = (*(eviction.briefly(removal, job.spec) for removal in decided.removals), *stuck)
        idle = tuple(eviction.briefly(removal, job.spec) for removal in decided.idle)
        decided = replace(decided, removals=removals, idle=idle, events=(*decided.events, *map(forced_out, stuck)))
    waits = (decided.again_seconds, earliest_wait(moments, now), REMOVED_SECONDS if decided.removals else None)
    return replace(decided, again_seconds=min((wait for wait in waits if wait is not None), default=None))


def _decide(job: RLJob, seen: Observed, now: datetime, config: Config, refused_edit: Trouble | None) -> Plan:
    if job.status.ended:
        if passed(end.expiry(job.spec, job.status), now):
            return Plan(delete_job=True)
        return _end(job, seen, _verdict_written(job.status), None, (), now)
    said = end.coordinators_word(job.status)
    if said is not None:
        return _end(job, seen, said, None, (), now)
    held = None if job.spec.suspend else kueue_admission.hold(job, seen, config)
    if job.spec.suspend or held is not None or _stopping(job, seen):
        return _suspend(job, seen, held, now, config, refused_edit)
    return _run(job, seen, now, config, refused_edit)


# --- a job that runs --------------------------------------------------------------------------------------------------


def _run(job: RLJob, seen: Observed, now: datetime, config: Config, refused_edit: Trouble | None) -> Plan:
    spec, before = job.spec, job.status
    told = before.target.machines if before.target is not None else ()
    working = {pod.machine for pod in seen.pods if pod.available}
    size = autoscaler.of_job(job, working, now)
    going = eviction.departing(seen, before, spec, now)
    barred = {pod.machine for pod in going}
    machines = kueue_admission.choose_machines(job, seen, told, size.count, set(told) - working, barred)
    why = size.why or kueue_admission.why_fewer(job, seen, told, machines)
    size = replace(size, why=why)
    placed = pod_set.placed_machines(spec, machines)
    judged = judge(job, seen, placed, now, config)
    verdict = end.operators_word(spec, before, judged.replacements, judged.blocked, len(machines), now)
    if verdict is not None:
        return _end(job, seen, verdict, judged.replacements, judged.losses, now)
    return _go_on(job, seen, _Roster(machines, going, size, judged), now, config, refused_edit)


@dataclass(frozen=True)
class _Roster:
    """The rollout machines that are wanted, and what happened to all machines."""

    machines: tuple[str, ...]
    departing: tuple[Pod, ...]
    """Pods that others have asked to go and that hand over their work."""
    size: autoscaler.Size
    judged: Judgement


def _go_on(
    job: RLJob, seen: Observed, roster: _Roster, now: datetime, config: Config, refused_edit: Trouble | None
) -> Plan:
    """The plan of a job that has not ended."""
    moves = _move(job, seen, roster, now, config)
    status = _running(job, seen, roster, moves, now, config, refused_edit)
    moments = [
        *end.deadlines(job.spec, status),
        *impatient_moments(seen, config),
        pod_groups.look_again(job, seen, now),
        gang_size.look_again(status, now),
        *roster.judged.moments,
        *eviction.ends(roster.departing),
        drain.drain_ends(status, job.spec),
        devices.look_again(moves.obstacle, now),
    ]
    plan = _leading_to(status, job, moves.removals, roster.judged.losses, moments, now)

    drafts = _drafts(job, seen, roster, moves, config)
    return replace(
        plan,
        children=(*pod_groups.due(job, seen), *owned_objects.due(job, seen, roster.machines, moves.created, config)),
        creations=tuple(Creation(new, drafts) for new in moves.created),
        asked=settlement.asked(job, seen, roster.size.count, config),
        settled=settlement.settled(job, seen, roster.size.count, now, config),
        events=(*plan.events, *roster.judged.events),
        idle=pod_set.idle(seen, moves.created),
    )


def _drafts(job: RLJob, seen: Observed, roster: _Roster, moves: _Moves, config: Config) -> Drafts:
    """What the new pods are made from."""
    epoch, avoided = moves.relay.epoch, roster.judged.avoided
    roles = {
        role: manifests.render_role(job, role, epoch, config, moves.shapes[role], avoided)
        for role in sorted({new.role for new in moves.created})
    }
    return Drafts(job, seen, roster.machines, roles)


@dataclass(frozen=True)
class _Moves:
    """What becomes of the pods, and of the chain over them. `leaving`: pods that are still to be drained."""

    shapes: Mapping[Role, str]
    created: Sequence[NewPod]
    removals: Sequence[Removal]
    leaving: int
    members: tuple[Member, ...]
    relay: RelayTopology
    obstacle: Trouble | None
    """Why pods that are wanted are not made, or wait."""


def _move(job: RLJob, seen: Observed, roster: _Roster, now: datetime, config: Config) -> _Moves:
    spec, before, machines, judged = job.spec, job.status, roster.machines, roster.judged
    placed = pod_set.placed_machines(spec, machines)
    shapes = {role: manifests.shape(spec, role, config) for role in Role}
    outdated = pod_set.outdated_pods(placed, seen, shapes, judged.avoided)
    wanted = pod_set.to_create(
        placed, seen, judged.losses, outdated, before.incarnations, judged.replacements, judged.blocked, now
    )
    barred = devices.obstacles(job, seen.devices)
    created = [new for new in wanted if new.role not in barred]
    gone = drain.dismissed(seen, before, spec, now)
    removals = pod_set.to_remove(placed, seen, judged.losses, outdated, gone)
    created = pod_groups.admitted(job, machines, seen, created)
    members = pod_set.members(seen, created, removals, roster.departing, eviction.shut_down(seen, spec))
    smallest = max(1, min(spec.rollout.smallest, len(machines) - len(judged.blocked)))
    where = locations(seen, spec.relay.topology_keys)
    relay = next_topology(before.relay, before.members, members, machines, smallest, seen.highest_epoch, where)
    drained = [pod for pod in roster.departing if pod.role is Role.ROLLOUT]
    leaving = len(pod_set.leaving(placed, seen, removals)) + len(drained)
    return _Moves(shapes, created, removals, leaving, members, relay, devices.obstacle(barred, wanted, seen))


def _running(
    job: RLJob,
    seen: Observed,
    roster: _Roster,
    moves: _Moves,
    now: datetime,
    config: Config,
    refused_edit: Trouble | None,
) -> RLJobStatus:
    before, judged = job.status, roster.judged
    report = Report(
        job=job,
        seen=seen,
        machines=roster.machines,
        members=moves.members,
        chain_length=chained(moves.relay, job.status.runtime.relay if job.status.runtime is not None else None),
        losses=judged.losses,
        leaving=moves.leaving,
        shapes=moves.shapes,
        paused=judged.replacements.pause is not None,
        pods=sum(pod.live for pod in seen.pods) + len(moves.created),
    )
    given_up = len(judged.blocked)
    too_few = len(roster.machines) - given_up < job.spec.rollout.smallest
    trouble = devices.explained(job, seen, find_trouble(seen, judged.blocked, too_few, config, now))
    admission = kueue_admission.told(job, seen, roster.size.count)
    facts = replace(report.facts(moves.obstacle or trouble, given_up), refused=refused_edit, admission=admission)
    target, history = aim(job, roster.machines, TargetPhase.RUN, roster.size.why)
    facts = replace(facts, trouble=gang_size.explained(job, seen, facts.trouble, config))
    updates = {
        "accepted": accept(job),
        "incarnations": _numbers(before, seen, moves.created),
        "target": target,
        "parallelism": history,
        "elasticity": roster.size.history,
        "relay": moves.relay,
        "replacements": judged.replacements,
        "start_time": before.start_time or now,
        "active_since": before.active_since or now,
        "first_ready_time": before.first_ready_time or (now if facts.started else None),
        "drain_since": _drain_since(before, target, now) if moves.leaving else None,
    }
    return _whole_seconds(report.status(facts, now).model_copy(update=updates))


def _numbers(before: RLJobStatus, seen: Observed, created: Iterable[NewPod]) -> dict[str, int]:
    """Highest incarnation of each machine."""
    numbers = dict(before.incarnations)
    for pod in seen.pods:
        numbers[pod.machine] = max(pod.incarnation, numbers.get(pod.machine, 0))
    return numbers | {new.machine: new.incarnation for new in created}


def _drain_since(before: RLJobStatus, target: Target, now: datetime) -> datetime:
    """Since when this target waits for machines to leave."""
    unchanged = before.target is not None and before.target.revision == target.revision
    return before.drain_since if unchanged and before.drain_since is not None else now


# --- a job that is suspended ------------------------------------------------------------------------------------------


def _stopping(job: RLJob, seen: Observed) -> bool:
    """Whether a suspension has begun and its pods are still there. It is finished though the spec says to go on by now:
    what was edited under it reaches the job by new pods only. Pods that no status counts yet are of the resumption
    itself, cut short before its status was written."""
    told, known = job.status.target, job.status.incarnations
    if told is None or told.phase is not TargetPhase.SUSPEND:
        return False
    return any(not pod.deleting and pod.incarnation <= known.get(pod.machine, 0) for pod in seen.pods)


def _suspend(
    job: RLJob, seen: Observed, held: Hold | None, now: datetime, config: Config, refused_edit: Trouble | None
) -> Plan:
    spec, before = job.spec, job.status
    present = [pod for pod in seen.pods if not pod.deleting]
    told = before.target.machines if before.target is not None else ()
    rollout = told or machine_scaling.choose_machines((), machine_scaling.wanted_count(spec.rollout), ())
    stop = drain.may_stop(seen, before, spec, now)
    waiting = bool(present) and not stop
    removals = [Removal(pod, "Suspended") for pod in present] if stop else []
    members = pod_set.members(seen, (), removals)
    target, history = aim(job, rollout, TargetPhase.SUSPEND)
    report = Report(job=job, seen=seen, machines=rollout, members=members, chain_length=0, pods=len(seen.pods))
    facts = replace(report.facts(None), suspending=True, refused=refused_edit, held=held)
    updates = {
        "accepted": accept(job),
        "incarnations": _numbers(before, seen, ()),
        # Without a target and without pods nobody is there to be told.
        "target": target if before.target is not None or present else None,
        "parallelism": history,
        "start_time": before.start_time or (now if present else None),
        "active_since": before.active_since if waiting else None,
        "first_ready_time": before.first_ready_time if waiting else None,
        "drain_since": _drain_since(before, target, now) if waiting else None,
        "relay": shortened(before.relay, before.members, members, seen.highest_epoch)
        if waiting
        else disbanded(before.relay),
    }
    status = _whole_seconds(report.status(facts, now).model_copy(update=updates))
    # Nobody tells when a flavor, a priority class or a claim's template is made.
    lacking = held.trouble if held is not None and held.stalled else None
    moments = [drain.drain_ends(status, spec), devices.look_again(lacking, now)]
    return replace(
        _leading_to(status, job, removals, (), moments, now),
        # Kueue counts what the base claims, so the claims' templates come before it.
        children=tuple(owned_objects.claim_templates(job, seen.devices)) if held is not None else (),
        asked=settlement.asked(job, seen, 0, config),
        settled=settlement.settled(job, seen, 0, now, config),
    )


# --- a job that has ended ---------------------------------------------------------------------------------------------


def _end(
    job: RLJob,
    seen: Observed,
    verdict: Verdict,
    replacements: Replacements | None,
    losses: Sequence[machine_losses.Loss],
    now: datetime,
) -> Plan:
    before = job.status
    removals = end.pods_to_clean(job.spec.run_policy.clean_pod_policy, seen)
    report = Report(
        job=job,
        seen=seen,
        machines=before.target.machines if before.target is not None else (),
        members=pod_set.members(seen, (), removals),
        chain_length=0,
        losses=tuple(losses),
        pods=sum(pod.live for pod in seen.pods),
    )
    facts = replace(report.facts(None), verdict=verdict)
    updates: dict[str, Any] = {"completion_time": before.completion_time or now, "drain_since": None}
    updates["relay"] = disbanded(before.relay)
    updates["incarnations"] = _numbers(before, seen, ())
    if replacements is not None:
        updates["replacements"] = replacements
    status = _whole_seconds(report.status(facts, now).model_copy(update=updates))
    plan = _leading_to(status, job, removals, losses, [end.expiry(job.spec, status)], now)
    return replace(plan, settled=settlement.finished(job, seen, verdict, now))


def _verdict_written(status: RLJobStatus) -> Verdict:
    """The sticky end, as the status holds it."""
    failed = status.is_true(conditions.FAILED)
    condition = status.condition(conditions.FAILED if failed else conditions.COMPLETE)
    reason, message = (condition.reason, condition.message) if condition is not None else ("", "")
    return Verdict(FinishedOutcome.FAILED if failed else FinishedOutcome.COMPLETE, reason, message)


# --- the plan around a status ---------------------------------------------------------------------------------------


def _leading_to(
    status: RLJobStatus,
    job: RLJob,
    removals: Iterable[Removal],
    losses: Sequence[machine_losses.Loss],
    moments: Iterable[datetime | None],
    now: datetime,
) -> Plan:
    """The plan whose job has this status; it is looked at again at the first of the `moments`."""
    return Plan(
        status=changed(job, status),
        removals=tuple(removals),
        events=tuple(transitions(job.status, status, losses)),
        again_seconds=earliest_wait(moments, now),
        losses=tuple(losses),
    )


# --- the status as it goes over the wire ------------------------------------------------------------------------------


def _whole_seconds(status: RLJobStatus) -> RLJobStatus:
    """As it reads back from the API server."""
    return RLJobStatus.model_validate(status.to_dict())


def changed(job: RLJob, status: RLJobStatus) -> RLJobStatus | None:
    """The operator's part if it differs from what is written."""
    mine = status.model_copy(update={"runtime": None})
    return None if mine == job.status.model_copy(update={"runtime": None}) else mine
