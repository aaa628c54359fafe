"""Letting go: what the coordinator is asked to hand over, and how long the operator waits for it.

The operator writes a target; the coordinator answers with `runtime.applied` (the target's revision is in force) and
`runtime.drained` (these machines hold nothing any more). Nobody waits for a coordinator that is not there, but for one
that starts while the trainer may hold updates that no checkpoint has.
"""

from __future__ import annotations

from datetime import datetime

from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobStatus, Role, Target, TargetPhase
from rljob_operator.policies.base.deadlines import deadline, is_past
from rljob_operator.policies.base.observation import Observed

STOPPED = "Suspended"
"""The stage (`runtime.stage`) of a coordinator that has saved everything and stands still."""


def drained_machines(observed: Observed, status: RLJobStatus, spec: RLJobSpec, now: datetime) -> frozenset[str]:
    """Machines outside the target as last written that may go: drained, out of time, or with nobody to drain them."""
    told = status.target
    if told is None:
        return frozenset()
    leaving = {pod.machine for pod in observed.pods if pod.role is Role.ROLLOUT} - set(told.machines)
    if not _listening(observed) or _out_of_time(status, spec, now):
        return frozenset(leaving)
    drained = set(status.runtime.drained) if _applied(status, told) and status.runtime is not None else set()
    working = {pod.machine for pod in observed.pods if pod.available}
    return frozenset(machine for machine in leaving if machine in drained or machine not in working)


def may_suspend(observed: Observed, status: RLJobStatus, spec: RLJobSpec, now: datetime) -> bool:
    """Whether a job that is to be suspended may lose its pods: its state is saved, or nobody is there to save it."""
    if not _listening(observed) and not (_coming(observed) and _unsaved(observed, status)):
        return True
    told = status.target
    if told is None or told.phase is not TargetPhase.SUSPEND:
        return False
    stopped = status.runtime is not None and status.runtime.stage == STOPPED
    return (_applied(status, told) and stopped) or _out_of_time(status, spec, now)


def drain_ends(status: RLJobStatus, spec: RLJobSpec) -> datetime | None:
    """When the operator stops waiting."""
    return deadline(status.drain_since, spec.run_policy.drain_seconds)


def _listening(observed: Observed) -> bool:
    """A coordinator that can hear a target and save state."""
    return any(pod.role is Role.COORDINATOR and pod.available for pod in observed.pods)


def _coming(observed: Observed) -> bool:
    """A coordinator that starts, with nothing known to stand in its way: it will hear the target."""
    pods = [pod for pod in observed.pods if pod.role is Role.COORDINATOR and pod.live]
    return any(pod.waiting is None and pod.unschedulable is None for pod in pods)


def _unsaved(observed: Observed, status: RLJobStatus) -> bool:
    """Whether the trainer may hold updates that no checkpoint has: it is at work, and a coordinator has been since the
    last suspension. Its reports do not decide: it may have died before it told of the last update."""
    said = status.runtime
    if said is None or said.stage in (None, STOPPED):
        return False
    return any(pod.role is Role.TRAINER and pod.available for pod in observed.pods)


def _applied(status: RLJobStatus, told: Target) -> bool:
    return status.runtime is not None and (status.runtime.applied or 0) >= told.revision


def _out_of_time(status: RLJobStatus, spec: RLJobSpec, now: datetime) -> bool:
    return is_past(drain_ends(status, spec), now)
