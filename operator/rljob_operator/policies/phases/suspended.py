"""Suspended phase: drain and remove the pods of a job that is suspended, or held by a queue."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from rljob_api.admission.last_accepted import accept
from rljob_api.spec import RLJob
from rljob_api.status import TargetPhase
from rljob_kube.manifests.objects import Deployment
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import Removal
from rljob_operator.policies.base.kueue_objects import Hold
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.kueue import settlement
from rljob_operator.policies.lifecycle import drain
from rljob_operator.policies.phases.steps import Plan, drain_since, incarnations, leading_to, whole_seconds
from rljob_operator.policies.pods import devices, egress_proxy, environments, owned_objects, pod_set
from rljob_operator.policies.pods.relay_membership import dissolved, without_lost
from rljob_operator.policies.scaling import machines as machine_scaling
from rljob_operator.policies.scaling.target import choose_target
from rljob_operator.policies.status.builder import StatusBuilder


def stopping(job: RLJob, observed: Observed) -> bool:
    """Tell whether a suspension has begun and its pods still exist.

    It is completed even if the spec resumes by now: an edit during a suspension reaches the job only by new pods. Pods
    that no status counts yet belong to a resumption whose status was not written.
    """
    target, known = job.status.target, job.status.incarnations
    if target is None or target.phase is not TargetPhase.SUSPEND:
        return False
    return any(not pod.deleting and pod.incarnation <= known.get(pod.machine, 0) for pod in observed.pods)


def suspend(
    job: RLJob,
    observed: Observed,
    held: Hold | None,
    now: datetime,
    config: Config,
    refused_edit: ConditionReason | None,
) -> Plan:
    """Plan a job that is suspended. `held`: why a queue does not let it run."""
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
        job=job,
        observed=observed,
        machines=rollout,
        members=members,
        chain_length=0,
        pods=len(observed.pods) + observed.runner_pods,
        runs=waiting,
    )
    facts = replace(builder.facts(None, now), suspending=True, refused=refused_edit, held=held)
    updates = {
        "accepted": accept(job),
        "incarnations": incarnations(before, observed, ()),
        # Without a target and without pods no coordinator can read it.
        "target": target if before.target is not None or present else None,
        "parallelism": history,
        "start_time": before.start_time or (now if present else None),
        "active_since": before.active_since if waiting else None,
        "first_ready_time": before.first_ready_time if waiting else None,
        "drain_since": drain_since(before, target, now) if waiting else None,
        "relay": without_lost(before.relay, before.members, members, observed.highest_epoch)
        if waiting
        else dissolved(before.relay),
    }
    status = whole_seconds(builder.status(facts, now).model_copy(update=updates))
    # No event reports a new flavor, priority class or claim template.
    lacking = held.stall if held is not None and held.stalled else None
    moments = [drain.drain_ends(status, spec), devices.next_check(lacking, now)]
    return replace(
        leading_to(status, job, removals, (), moments, now),
        # A round that is still to end needs its runners.
        deployments=() if waiting else _runners_to_stop(job, observed, config),
        # Kueue counts the claims of the base, so their templates are created first.
        children=tuple(owned_objects.claim_templates(job, observed.devices)) if held is not None else (),
        asked=settlement.asked(job, observed, 0, config),
        settled=settlement.settled(job, observed, 0, now, config),
    )


def _runners_to_stop(job: RLJob, observed: Observed, config: Config) -> tuple[Deployment, ...]:
    """Return the Deployments of the runners and of their proxy, without pods, where there still are some."""
    return (
        *egress_proxy.to_change(job, observed, config, runs=False),
        *environments.to_stop(job, observed, config),
    )
