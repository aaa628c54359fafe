"""Drain: what the coordinator must hand over, and how long the operator waits for it.

The operator writes a target. The coordinator answers with `runtime.applied` (the target's revision is in force) and
`runtime.drained` (these machines hold nothing any more). The operator does not wait for an absent coordinator. It waits
for a starting one, if the trainer may hold updates that are in no checkpoint.
"""

from __future__ import annotations

from datetime import datetime

from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobStatus, Role, Target, TargetPhase
from rljob_operator.policies.base.deadlines import deadline, is_past
from rljob_operator.policies.base.observation import Observed

STOPPED = "Suspended"
"""Stage (`runtime.stage`) of a coordinator that has saved everything and is idle."""


def drained_machines(observed: Observed, status: RLJobStatus, spec: RLJobSpec, now: datetime) -> frozenset[str]:
    """Return the machines outside the written target that may be deleted.

    They are drained, or their time is over, or no coordinator can drain them.
    """
    target = status.target
    if target is None:
        return frozenset()
    leaving = {pod.machine for pod in observed.pods if pod.role is Role.ROLLOUT} - set(target.machines)
    if not _listening(observed) or _out_of_time(status, spec, now):
        return frozenset(leaving)
    drained = set(status.runtime.drained) if _applied(status, target) and status.runtime is not None else set()
    working = {pod.machine for pod in observed.pods if pod.available}
    return frozenset(machine for machine in leaving if machine in drained or machine not in working)


def may_suspend(observed: Observed, status: RLJobStatus, spec: RLJobSpec, now: datetime) -> bool:
    """Tell whether the pods of a job that suspends may be deleted.

    Its state is saved, or no coordinator can save it.
    """
    if not _listening(observed) and not (_coming(observed) and _unsaved(observed, status)):
        return True
    target = status.target
    if target is None or target.phase is not TargetPhase.SUSPEND:
        return False
    stopped = status.runtime is not None and status.runtime.stage == STOPPED
    return (_applied(status, target) and stopped) or _out_of_time(status, spec, now)


def drain_ends(status: RLJobStatus, spec: RLJobSpec) -> datetime | None:
    """Return when the operator stops waiting."""
    return deadline(status.drain_since, spec.run_policy.drain_seconds)


def _listening(observed: Observed) -> bool:
    """Tell whether a coordinator can receive a target and save state."""
    return any(pod.role is Role.COORDINATOR and pod.available for pod in observed.pods)


def _coming(observed: Observed) -> bool:
    """Tell whether a coordinator is starting, and nothing known prevents it."""
    pods = [pod for pod in observed.pods if pod.role is Role.COORDINATOR and pod.live]
    return any(pod.waiting is None and pod.unschedulable is None for pod in pods)


def _unsaved(observed: Observed, status: RLJobStatus) -> bool:
    """Tell whether the trainer may hold updates that are in no checkpoint.

    It is available, and a coordinator has run since the last suspension. The coordinator's reports do not decide: it
    may have died before it reported the last update.
    """
    report = status.runtime
    if report is None or report.stage in (None, STOPPED):
        return False
    return any(pod.role is Role.TRAINER and pod.available for pod in observed.pods)


def _applied(status: RLJobStatus, target: Target) -> bool:
    return status.runtime is not None and (status.runtime.applied or 0) >= target.revision


def _out_of_time(status: RLJobStatus, spec: RLJobSpec, now: datetime) -> bool:
    return is_past(drain_ends(status, spec), now)
