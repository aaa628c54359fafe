"""Gang size: distinguishes a gang that waits from one that is larger than the cluster.

Time alone places the former, and never the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from rljob_api import constants as c
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus, Role
from rljob_kube.manifests.pods import PodSpec
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.observation import Node, Observed
from rljob_operator.policies.gang import pod_groups
from rljob_operator.policies.kueue import admission as kueue_admission
from rljob_operator.policies.pods import capacity
from rljob_operator.policies.pods.manifests import render_pod
from rljob_operator.policies.status.conditions import STALLED

TOO_LARGE = "GangTooLarge"
RECHECK_SECONDS = 15.0
"""Seconds between checks for new nodes. Only nodes with pods of the job wake the operator, and this job has none."""


def explained(job: RLJob, observed: Observed, stall: ConditionReason | None, config: Config) -> ConditionReason | None:
    """Explain why a gang waits (`pod_groups.explained`), and whether the cluster could ever hold it."""
    wait = pod_groups.explained(job, observed, stall)
    if wait is None or wait.reason != "Unschedulable" or not pod_groups.gathers(job.spec, job.status):
        return wait
    if observed.cluster is None:
        unknown = "whether the cluster could ever hold it is unknown: the operator may not list nodes"
        return replace(wait, message=f"{wait.message}; {unknown}")
    most = _most(job, observed, observed.cluster, config)
    smallest, trainers = job.spec.rollout.smallest, job.spec.trainer.replicas
    if most == smallest:
        return wait
    rest = f"the coordinator, {trainers} trainer"
    if most is None:
        holds, advice = f"not even {rest} and no rollout machine", "add nodes, or request smaller machines"
    else:
        holds = f"{rest} and at most {most} rollout machines, where the gang has {smallest}"
        lower = f"add nodes, request smaller machines, or lower spec.rollout.minMachines to {most}"
        advice = lower if most else "add nodes, or request smaller machines"
    held = f"the {len(observed.cluster)} empty nodes of the cluster hold {holds}"
    return ConditionReason(TOO_LARGE, f"the gang is larger than the cluster: {held}; {advice}. {wait.message}")


def next_check(status: RLJobStatus, now: datetime) -> datetime | None:
    """Return when to check for new nodes."""
    stalled = status.condition(STALLED)
    waits = stalled is not None and stalled.reason == TOO_LARGE
    return now + timedelta(seconds=RECHECK_SECONDS) if waits else None


def _most(job: RLJob, observed: Observed, nodes: Sequence[Node], config: Config) -> int | None:
    """Return the number of rollout machines, up to the gang's, with which the cluster could hold it.

    None: not even without rollout machines.
    """
    kinds = {role: capacity.kind_of(_pod(job, role, observed, config)) for role in Role}
    fixed = [(kinds[Role.COORDINATOR], 1), (kinds[Role.TRAINER], job.spec.trainer.replicas)]
    for machines in range(job.spec.rollout.smallest, -1, -1):
        if capacity.fits([*fixed, (kinds[Role.ROLLOUT], machines)], nodes):
            return machines
    return None


def _pod(job: RLJob, role: Role, observed: Observed, config: Config) -> PodSpec:
    new = NewPod(c.machine_name(role.value.lower(), 0), role, 1)
    return kueue_admission.placed(job, new, render_pod(job, new, 0, config), observed)["spec"]
