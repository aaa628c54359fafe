"""Ended phase: clean up after a job whose outcome is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from rljob_api.spec import RLJob
from rljob_api.status import FinishedOutcome, Replacements, RLJobStatus
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import JobOutcome
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.failure import losses as machine_losses
from rljob_operator.policies.kueue import settlement
from rljob_operator.policies.lifecycle import end
from rljob_operator.policies.phases.steps import Plan, incarnations, leading_to, whole_seconds
from rljob_operator.policies.pods import egress_proxy, environments, pod_set
from rljob_operator.policies.pods.relay_membership import dissolved
from rljob_operator.policies.status import conditions
from rljob_operator.policies.status.builder import StatusBuilder


def end_job(
    job: RLJob,
    observed: Observed,
    outcome: JobOutcome,
    replacements: Replacements | None,
    losses: Sequence[machine_losses.MachineLoss],
    now: datetime,
    config: Config,
) -> Plan:
    """Plan a job that has this outcome. `replacements`: their new counts, None to keep the written ones."""
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
    facts = replace(builder.facts(None, now), outcome=outcome)
    updates: dict[str, Any] = {"completion_time": before.completion_time or now, "drain_since": None}
    updates["relay"] = dissolved(before.relay)
    updates["incarnations"] = incarnations(before, observed, ())
    if replacements is not None:
        updates["replacements"] = replacements
    status = whole_seconds(builder.status(facts, now).model_copy(update=updates))
    plan = leading_to(status, job, removals, losses, [end.ttl_expiry(job.spec, status)], now)
    return replace(
        plan,
        deployments=(
            *egress_proxy.to_change(job, observed, config, runs=False),
            *environments.to_stop(job, observed, config),
        ),
        settled=settlement.finished(job, observed, outcome, now),
    )


def written_outcome(status: RLJobStatus) -> JobOutcome:
    """Return the final outcome that the status holds."""
    failed = status.is_true(conditions.FAILED)
    condition = status.condition(conditions.FAILED if failed else conditions.COMPLETE)
    reason, message = (condition.reason, condition.message) if condition is not None else ("", "")
    return JobOutcome(FinishedOutcome.FAILED if failed else FinishedOutcome.COMPLETE, reason, message)
