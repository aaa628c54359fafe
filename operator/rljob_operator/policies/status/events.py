"""Events: reports transitions between the written status and the next one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rljob_api.status import Condition, LayoutSwitchesReport, LayoutSwitchReport, Phase, Replacements, RLJobStatus, Role
from rljob_operator.policies.base.decisions import NORMAL, WARNING, Event, Removal
from rljob_operator.policies.base.kueue_objects import ADMITTED
from rljob_operator.policies.failure.losses import MachineLoss
from rljob_operator.policies.lifecycle.admission import INVALID_SPEC
from rljob_operator.policies.status.conditions import CHECKPOINT_DURABLE, COMPLETE, FAILED, PAUSED, STALLED, SUSPENDED


def transitions(before: RLJobStatus, after: RLJobStatus, losses: Sequence[MachineLoss]) -> list[Event]:
    """Return the events of this change of status."""
    events = _placement(before, after)
    events += [Event(WARNING if loss.counts or loss.slows else NORMAL, "MachineLost", _told(loss)) for loss in losses]
    events += _nodes(before.replacements or Replacements(), after.replacements or Replacements())
    events += _scaling(before, after)
    events += _switches(before, after)
    events += _relay(before, after)
    events += _admission(before, after)
    events += _state(before, after)
    return events


def forced_out(removal: Removal) -> Event:
    """Return the event of a pod that is deleted by force."""
    pod = removal.pod
    return Event(WARNING, "PodForceDeleted", f"{pod.name} on {pod.node}: {removal.reason}")


def _placement(before: RLJobStatus, after: RLJobStatus) -> list[Event]:
    events = []
    if before.start_time is None and after.members:
        count = len(after.members)
        events.append(Event(NORMAL, "Created", f"created {count} pods: coordinator, trainer and rollout machines"))
        durable = after.condition(CHECKPOINT_DURABLE)
        if durable is not None and not after.is_true(CHECKPOINT_DURABLE):
            events.append(Event(WARNING, "CheckpointNotDurable", durable.message))
    old = {member.machine: member.incarnation for member in before.members}
    for member in after.members:
        known = before.incarnations.get(member.machine, 0)
        if known and member.incarnation > known and old.get(member.machine) != member.incarnation:
            message = f"{member.machine} is replaced by incarnation {member.incarnation}"
            events.append(Event(NORMAL, "MachineReplaced", message))
    left = {(member.machine, member.incarnation) for member in before.members if member.leaving}
    for member in after.members:
        # MachineMoved reports a leaving rollout machine.
        if member.leaving and member.role is not Role.ROLLOUT and (member.machine, member.incarnation) not in left:
            events.append(
                Event(NORMAL, "MachineLeaving", f"{member.machine} is being deleted: it saves its state first")
            )
    return events


def _told(loss: MachineLoss) -> str:
    return f"{loss.machine} incarnation {loss.incarnation}: {loss.reason}: {loss.message}"


def _nodes(before: Replacements, after: Replacements) -> list[Event]:
    known = {node.name for node in before.avoided_nodes}
    left_out = "no pod of the job is placed there for now"
    events = [
        Event(WARNING, "NodeAvoided", f"{node.name}: {node.reason}: {left_out}")
        for node in after.avoided_nodes
        if node.name not in known
    ]
    if after.pause is not None and before.pause is None:
        events.append(Event(WARNING, "ReplacementPaused", PAUSED))
    if before.pause is not None and after.pause is None:
        events.append(Event(NORMAL, "ReplacementResumed", "machines that count as dead are replaced immediately again"))
    return events


def _scaling(before: RLJobStatus, after: RLJobStatus) -> list[Event]:
    if before.target is None or after.target is None:
        return []
    events = []
    old, new = len(before.target.machines), len(after.target.machines)
    if old != new:
        reason = "RolloutScaledUp" if new > old else "RolloutScaledDown"
        why = f" ({after.target.reason})" if after.elasticity is not None else ""
        events.append(Event(NORMAL, reason, f"from {old} to {new} rollout machines{why}"))
    old_names, new_names = set(before.target.machines), set(after.target.machines)
    if old == new and old_names != new_names:
        events.append(
            Event(
                NORMAL,
                "MachineMoved",
                f"{_named(old_names - new_names)}: its pod is being deleted; "
                f"{_named(new_names - old_names)} takes its place",
            )
        )
    events += _pools(before, after)
    was, now = before.target.tensor_parallel, after.target.tensor_parallel
    for kind, one, other in (("short", was.short, now.short), ("long", was.long, now.long)):
        if one != other:
            message = f"{kind} rounds: from TP {one} to TP {other}"
            events.append(Event(NORMAL, "TensorParallelChanged", message))
    return events


def _pools(before: RLJobStatus, after: RLJobStatus) -> list[Event]:
    known = {one.name: one.pool.runners for one in before.environments if one.pool is not None}
    events = []
    for environment in after.environments:
        old, pool = known.get(environment.name), environment.pool
        if pool is not None and old is not None and pool.runners != old:
            reason = "RunnersScaledUp" if pool.runners > old else "RunnersScaledDown"
            text = f"{environment.name}: from {old} to {pool.runners} runners"
            why = f"open episodes of training in the last rounds: {_listed(pool.open)}"
            events.append(Event(NORMAL, reason, f"{text} ({why})"))
    return events


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _switches(before: RLJobStatus, after: RLJobStatus) -> list[Event]:
    """Return events for the switches of a round: one for each listed pair of sizes, and one for all that failed.

    The parallelism planner counts each reported round once, so each is told once."""
    last = after.runtime.last_round if after.runtime is not None else None
    if last is None or after.parallelism is None or last.round != after.parallelism.round:
        return []
    if before.parallelism is None or before.parallelism.round == after.parallelism.round:
        return []
    report = last.layout_switches
    if report is None:
        return []
    made = sorted({(one.from_size, one.to_size) for one in report.switches if one.reached_size == one.to_size})
    # Without the round, so that all rounds are one event with their count.
    events = [Event(NORMAL, "LayoutSwitched", f"inside a round, from TP {one} to TP {other}") for one, other in made]
    return [*events, *_failures(last.round, report)]


def _failures(round_: int, report: LayoutSwitchesReport) -> list[Event]:
    if not report.failed:
        return []
    told = ", ".join(_failed(one) for one in report.switches if one.reached_size != one.to_size)
    message = f"round {round_}: {report.failed} switches of the tensor parallel size failed: {told or 'not listed'}"
    return [Event(WARNING, "LayoutSwitchFailed", message)]


def _failed(one: LayoutSwitchReport) -> str:
    end = f"{one.machine} keeps TP {one.reached_size}" if one.reached_size else f"{one.machine} was lost"
    return f"{end} (to TP {one.to_size})"


def _named(machines: Iterable[str]) -> str:
    return ", ".join(sorted(machines))


def _relay(before: RLJobStatus, after: RLJobStatus) -> list[Event]:
    if after.relay is None or not after.relay.chain or (before.relay is not None and before.relay == after.relay):
        return []
    formed = before.relay is None or before.relay.epoch == 0
    text = f"epoch {after.relay.epoch}, master {after.relay.master}, {len(after.relay.chain)} relays"
    return [Event(NORMAL, "RelayFormed" if formed else "RelayRebuilt", text)]


def _admission(before: RLJobStatus, after: RLJobStatus) -> list[Event]:
    """Return events of Kueue's decisions. A decision that stalls the job is reported as Stalled."""
    was, now, stalled = before.condition(ADMITTED), after.condition(ADMITTED), after.condition(STALLED)
    if now is None or (stalled is not None and stalled.reason == now.reason):
        return []
    if after.is_true(ADMITTED):
        return [] if before.is_true(ADMITTED) else [Event(NORMAL, "Admitted", now.message)]
    if was is not None and was.reason == now.reason:
        return []
    return [Event(WARNING if before.is_true(ADMITTED) else NORMAL, now.reason, now.message)]


def _repeats(was: Condition | None, now: Condition) -> bool:
    """Tell whether this is the same stall as before.

    Another refused edit is another mistake. For all other reasons only counts in the message change.
    """
    return was is not None and was.reason == now.reason and (now.reason != INVALID_SPEC or was.message == now.message)


def _state(before: RLJobStatus, after: RLJobStatus) -> list[Event]:
    events = []
    stalled, was = after.condition(STALLED), before.condition(STALLED)
    failed = after.is_true(FAILED)
    if stalled is not None and not failed and not _repeats(was, stalled):
        events.append(Event(WARNING, stalled.reason, stalled.message))
    if was is not None and was.reason == INVALID_SPEC and (stalled is None or stalled.reason != INVALID_SPEC):
        events.append(Event(NORMAL, "SpecAccepted", "the spec is valid again and in force"))
    if after.phase is Phase.RUNNING and before.phase is not Phase.RUNNING:
        if before.first_ready_time is None:
            events.append(Event(NORMAL, "Running", "the job is ready"))
        elif before.phase is not None:
            events.append(Event(NORMAL, "Recovered", "the job is ready again"))
    if after.phase is Phase.SUSPENDING and before.phase is not Phase.SUSPENDING:
        events.append(Event(NORMAL, "Suspending", "the coordinator saves its state"))
    ran = before.start_time is not None
    if ran and after.is_true(SUSPENDED) and not before.is_true(SUSPENDED):
        events.append(Event(NORMAL, "Suspended", "all pods are deleted, the state is kept"))
    if ran and before.is_true(SUSPENDED) and not after.is_true(SUSPENDED):
        events.append(Event(NORMAL, "Resumed", "pods are created again"))
    for type_, kind in ((COMPLETE, NORMAL), (FAILED, WARNING)):
        condition = after.condition(type_)
        if after.is_true(type_) and not before.is_true(type_) and condition is not None:
            reason = "Completed" if type_ == COMPLETE else "Failed"
            events.append(Event(kind, reason, f"{condition.reason}: {condition.message}".rstrip(": ")))
    return events
