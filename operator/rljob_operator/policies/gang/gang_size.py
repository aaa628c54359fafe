"""A gang that waits is told from one that is larger than the cluster: time alone places the former, and never the
latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from rljob_api import constants as c
from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus, Role
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
LOOK_AGAIN_SECONDS = 15.0
"""Nodes may be added: the operator is woken by nodes that have pods of the job, and this job has none there."""


def explained(job: RLJob, observed: Observed, stall: ConditionReason | None, config: Config) -> ConditionReason | None:
    """The trouble as a job with a gang has it (`pod_groups.explained`), and whether its gang could ever be placed."""
    told = pod_groups.explained(job, observed, stall)
    if told is None or told.reason != "Unschedulable" or not pod_groups.gathers(job.spec, job.status):
        return told
    if observed.cluster is None:
        unknown = "whether the cluster could ever hold it is not known: the operator may not read nodes"
        return replace(told, message=f"{told.message}; {unknown}")
    most = _most(job, observed, observed.cluster, config)
    smallest, trainers = job.spec.rollout.smallest, job.spec.trainer.replicas
    if most == smallest:
        return told
    rest = f"the coordinator, {trainers} trainer"
    if most is None:
        holds, advice = f"not even {rest} and no rollout machine", "add nodes, or ask for smaller machines"
    else:
        holds = f"{rest} and at most {most} rollout machines, where the gang has {smallest}"
        lower = f"add nodes, ask for smaller machines, or lower spec.rollout.minMachines to {most}"
        advice = lower if most else "add nodes, or ask for smaller machines"
    held = f"the {len(observed.cluster)} nodes of the cluster, with nothing else on them, hold {holds}"
    return ConditionReason(TOO_LARGE, f"the gang is larger than the cluster: {held}; {advice}. {told.message}")


def look_again(status: RLJobStatus, now: datetime) -> datetime | None:
    """When to look whether nodes have been added."""
    stalled = status.condition(STALLED)
    waits = stalled is not None and stalled.reason == TOO_LARGE
    return now + timedelta(seconds=LOOK_AGAIN_SECONDS) if waits else None


def _most(job: RLJob, observed: Observed, nodes: Sequence[Node], config: Config) -> int | None:
    """With how many rollout machines, up to those of the gang, the cluster could hold it; None: not even with none."""
    kinds = {role: capacity.kind_of(_pod(job, role, observed, config)) for role in Role}
    fixed = [(kinds[Role.COORDINATOR], 1), (kinds[Role.TRAINER], job.spec.trainer.replicas)]
    for machines in range(job.spec.rollout.smallest, -1, -1):
        if capacity.fits([*fixed, (kinds[Role.ROLLOUT], machines)], nodes):
            return machines
    return None


def _pod(job: RLJob, role: Role, observed: Observed, config: Config) -> dict[str, object]:
    new = NewPod(c.machine_name(role.value.lower(), 0), role, 1)
    spec: dict[str, object] = kueue_admission.placed(job, new, render_pod(job, new, 0, config), observed)["spec"]
    return spec
