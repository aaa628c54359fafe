"""Plan: what to do about one job, from its spec and the observed cluster. Pure, total and deterministic.

The order of execution is part of the plan: children, pods, Deployments of runners, status, deletions, events. Pods
come before the status, because their names are deterministic. Deletions come after it, because a deleted pod is the
evidence of its own loss.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from rljob_api.spec import RLJob
from rljob_operator.policies.base import single_episode_pods
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.deadlines import earliest_wait, is_past
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.failure import nodes
from rljob_operator.policies.kueue import admission as kueue_admission
from rljob_operator.policies.lifecycle import end, eviction
from rljob_operator.policies.phases.ended import end_job, written_outcome
from rljob_operator.policies.phases.running import run
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.phases.suspended import stopping, suspend
from rljob_operator.policies.status.events import forced_out

REMOVED_SECONDS = 3.0
"""Seconds after which pods are listed again after a removal.

A pod that is gone before this process's watch has begun, or while the watch is broken, is in no event.
"""


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
        decided = replace(decided, used_pods=single_episode_pods.used(observed.runners.values()))
    moments = [*moments, *single_episode_pods.next_checks(observed.runners.values())]
    waits = (decided.again_seconds, earliest_wait(moments, now), REMOVED_SECONDS if decided.removals else None)
    return replace(decided, again_seconds=min((wait for wait in waits if wait is not None), default=None))


def _decide(
    job: RLJob, observed: Observed, now: datetime, config: Config, refused_edit: ConditionReason | None
) -> Plan:
    if job.status.ended:
        if is_past(end.ttl_expiry(job.spec, job.status), now):
            return Plan(delete_job=True)
        return end_job(job, observed, written_outcome(job.status), None, (), now, config)
    said = end.coordinator_outcome(job.status)
    if said is not None:
        return end_job(job, observed, said, None, (), now, config)
    held = None if job.spec.suspend else kueue_admission.hold(job, observed, config)
    if job.spec.suspend or held is not None or stopping(job, observed):
        return suspend(job, observed, held, now, config, refused_edit)
    return run(job, observed, now, config, refused_edit)
