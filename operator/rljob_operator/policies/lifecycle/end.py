"""End: who may end a job, and what is left to do afterwards."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from rljob_api.spec import CleanPodPolicy, RLJobSpec
from rljob_api.status import FinishedOutcome, Replacements, RLJobStatus
from rljob_operator.policies.base.deadlines import deadline, is_past
from rljob_operator.policies.base.decisions import JobOutcome, Removal
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.failure.losses import backoff_limit_exceeded


def coordinator_outcome(status: RLJobStatus) -> JobOutcome | None:
    """Return the outcome that the coordinator reports; None while the run continues."""
    finished = status.runtime.finished if status.runtime is not None else None
    if finished is None:
        return None
    default = "RoundsFinished" if finished.outcome is FinishedOutcome.COMPLETE else "RuntimeFailed"
    return JobOutcome(finished.outcome, finished.reason or default, finished.message)


def operator_outcome(
    spec: RLJobSpec,
    status: RLJobStatus,
    replacements: Replacements,
    blocked: Collection[str],
    wanted: int,
    now: datetime,
) -> JobOutcome | None:
    """Return the outcome that the operator declares; None while the run may continue.

    A deadline is over, or a budget is exhausted. `blocked` machines of the `wanted` rollout machines are given up.
    """
    policy, since = spec.run_policy, status.active_since
    if is_past(deadline(since, policy.active_deadline_seconds), now):
        message = (
            f"not complete {policy.active_deadline_seconds} s after the start (spec.runPolicy.activeDeadlineSeconds)"
        )
        return JobOutcome(FinishedOutcome.FAILED, "DeadlineExceeded", message)
    if status.first_ready_time is None and is_past(deadline(since, policy.startup_deadline_seconds), now):
        message = (
            f"not all pods were ready {policy.startup_deadline_seconds} s after the start "
            "(spec.runPolicy.startupDeadlineSeconds)"
        )
        return JobOutcome(FinishedOutcome.FAILED, "StartupDeadlineExceeded", message)
    why = backoff_limit_exceeded(replacements, spec)
    if why is not None:
        return JobOutcome(FinishedOutcome.FAILED, "BackoffLimitExceeded", why)
    if wanted and len(blocked) >= wanted:
        limit = spec.failure_policy.max_replacements_per_machine
        message = (
            f"all {wanted} rollout machines failed more than {limit} times in a row "
            "(spec.failurePolicy.maxReplacementsPerMachine)"
        )
        return JobOutcome(FinishedOutcome.FAILED, "ReplacementBudgetExhausted", message)
    return None


def deadlines(spec: RLJobSpec, status: RLJobStatus) -> list[datetime | None]:
    """Return the moments at which `operator_outcome` may change by time alone."""
    startup = spec.run_policy.startup_deadline_seconds if status.first_ready_time is None else None
    return [
        deadline(status.active_since, spec.run_policy.active_deadline_seconds),
        deadline(status.active_since, startup),
    ]


def pods_to_clean(policy: CleanPodPolicy, observed: Observed) -> list[Removal]:
    """Return the removals of an ended job."""
    if policy is CleanPodPolicy.NONE:
        return []
    return [
        Removal(pod, "JobEnded")
        for pod in observed.pods
        if not pod.deleting and (policy is CleanPodPolicy.ALL or not pod.terminal or pod.lingering)
    ]


def ttl_expiry(spec: RLJobSpec, status: RLJobStatus) -> datetime | None:
    """Return when an ended job is to be deleted."""
    return deadline(status.completion_time, spec.run_policy.ttl_seconds_after_finished)
