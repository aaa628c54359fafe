"""Settlement: which Workloads to create, return, finish and delete.

Quota is returned only when its pods are gone, or the API server shows a final phase: until then the kubelet has not
freed their resources. An evicted Workload stays without its reservation, so that Kueue keeps its position and its
backoff, and admits it again. An unwanted Workload is deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rljob_api.constants import ROLE_ROLLOUT
from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_kube.manifests.objects import Workload as WorkloadManifest
from rljob_kube.manifests.objects import WorkloadStatus
from rljob_operator.policies.base import single_episode_pods
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import JobOutcome
from rljob_operator.policies.base.kueue_objects import (
    ADMITTED,
    FINISHED,
    PODS_READY,
    QUOTA_RESERVED,
    REQUEUED,
    Kueue,
    Workload,
    base_name,
    runner_set,
    surplus_name,
    with_conditions,
)
from rljob_operator.policies.base.observation import Observed, Pod
from rljob_operator.policies.base.runners import Runners
from rljob_operator.policies.kueue import workloads
from rljob_operator.policies.kueue.admission import ROLLOUT, may_ask, surplus

_REQUEUED_IMMEDIATELY = ("Preempted", "NodeFailures")
"""Evictions after which Kueue may admit again without any action."""


@dataclass(frozen=True)
class Settlement:
    """A change of one Workload: a patch of its status, or its deletion."""

    workload: Workload
    status: WorkloadStatus | None = None
    """Patch of the status. None: delete it."""


def asked(job: RLJob, observed: Observed, count: int, config: Config) -> tuple[WorkloadManifest, ...]:
    """Return the Workloads to create now: the base first, and once it is admitted, one for each machine above it."""
    kueue = observed.kueue
    if kueue is None or kueue.problem is not None or job.spec.suspend:
        return ()
    base = kueue.workloads.get(base_name(job.name))
    if base is None:
        return (workloads.base(job, kueue, config),) if may_ask(job, observed, kueue) else ()
    bound = replace(kueue, queue=_queue(job, kueue))
    missing = [k for k in surplus(job, kueue, count) if surplus_name(job.name, k) not in kueue.workloads]
    return workloads.surplus(job, bound, missing, base.priority, config)


def settled(job: RLJob, observed: Observed, count: int, now: datetime, config: Config) -> tuple[Settlement, ...]:
    """Return the changes of the Workloads of a job that has not ended.

    A job that does not run keeps the quota of its base until it resumes.
    """
    kueue = observed.kueue
    if kueue is None:
        return ()
    wanted = {surplus_name(job.name, index) for index in surplus(job, kueue, count)}
    if not job.spec.suspend:
        wanted.add(base_name(job.name))
    roles = {True: (Role.COORDINATOR, Role.TRAINER, Role.ROLLOUT), False: (Role.ROLLOUT,)}
    right = {
        base: (workloads.asks(job, some, config), workloads.selects(job, some, config)) for base, some in roles.items()
    }
    pods = _pods_by_workload(job, observed, kueue)
    found = []
    for name, one in _sorted(kueue):
        outdated = _outdated(job, one, kueue, *right[name == base_name(job.name)])
        runners = observed.runners if name == base_name(job.name) else {}
        found.append(_settle(job, one, name in wanted and not outdated, pods.get(name, ()), runners, count, now))
    return tuple(one for one in found if one is not None)


def finished(job: RLJob, observed: Observed, outcome: JobOutcome, now: datetime) -> tuple[Settlement, ...]:
    """Return the changes of the Workloads of an ended job: the base is Finished when no pod runs any more."""
    if observed.kueue is None or observed.runner_pods or any(pod.occupies for pod in observed.pods):
        return ()
    name = base_name(job.name)
    why = ConditionReason("Failed" if outcome.failed else "Succeeded", outcome.message)
    found = []
    for key, one in _sorted(observed.kueue):
        if key != name:
            found.append(Settlement(one))
        elif not one.holds(FINISHED):
            found.append(Settlement(one, {"conditions": with_conditions(one.conditions, [(FINISHED, True, why)], now)}))
    return tuple(found)


def _queue(job: RLJob, kueue: Kueue) -> str:
    """Return the queue of the request: that of the base's quota, even if the label has changed."""
    base = kueue.workloads.get(base_name(job.name))
    return base.queue if base is not None and base.reserved else kueue.queue


def _sorted(kueue: Kueue) -> list[tuple[str, Workload]]:
    return [(name, one) for name, one in sorted(kueue.workloads.items()) if not one.deleting]


def _settle(
    job: RLJob,
    one: Workload,
    wanted: bool,
    pods: Sequence[Pod],
    runners: Mapping[str, Runners],
    count: int,
    now: datetime,
) -> Settlement | None:
    """Return the change of one Workload with these `pods` and `runners`.

    `wanted`: it is still requested as it is.
    """
    empty = not any(pod.occupies for pod in pods) and not any(some.possible_pods for some in runners.values())
    base = one.name == base_name(job.name)
    if empty and (not wanted or one.holds(FINISHED)):
        return Settlement(one)
    if one.evicted and one.reserved:
        return Settlement(one, _given_back(one, now)) if empty else None
    if not one.admitted:
        return None
    status: WorkloadStatus = {}
    reclaimed = _reclaimed(one, pods, count) if base and count else {}
    if reclaimed:
        status["reclaimablePods"] = [{"name": name, "count": number} for name, number in reclaimed.items()]
    ready = _pods_ready(one, pods, runners, now)
    written = one.condition(PODS_READY)
    if written is None or (written.get("status") == "True") != ready[1] or written.get("reason") != ready[2].reason:
        status["conditions"] = with_conditions(one.conditions, [ready], now)
    return Settlement(one, status) if status else None


def _pods_by_workload(job: RLJob, observed: Observed, kueue: Kueue) -> Mapping[str, Sequence[Pod]]:
    """Group pods by Workload: those of one machine, or all without their own Workload."""
    found = defaultdict[str, list[Pod]](list)
    for pod in observed.pods:
        own = f"{job.name}-{pod.machine}"
        found[own if own in kueue.workloads else base_name(job.name)].append(pod)
    return found


def _outdated(job: RLJob, one: Workload, kueue: Kueue, asks: str, selects: str) -> bool:
    """Tell whether a Workload no longer requests what the job needs.

    The job needs `asks` on nodes that it `selects`. A Workload with quota keeps its nodes, its number of machines and
    its queue; other machines have their own Workloads.
    """
    if one.asks != asks:
        return True
    base = one.name == base_name(job.name)
    numbers = {ROLLOUT: job.spec.rollout.smallest, "trainer": job.spec.trainer.replicas} if base else {ROLLOUT: 1}
    changed = any(one.counts.get(name) != number for name, number in numbers.items())
    elsewhere = one.selects not in ("", selects)
    return not one.reserved and (changed or elsewhere or one.queue != _queue(job, kueue))


def _given_back(one: Workload, now: datetime) -> WorkloadStatus:
    """Return the status of an evicted Workload without its reservation, as Kueue's own integrations write it."""
    why = one.why
    changes = [
        (QUOTA_RESERVED, False, ConditionReason("Pending", why.message)),
        (REQUEUED, why.reason in _REQUEUED_IMMEDIATELY, why),
    ]
    if one.condition(ADMITTED) is not None:
        changes.append((ADMITTED, False, ConditionReason("NoReservation", "The workload has no reservation")))
    if one.condition(PODS_READY) is not None:
        changes.append((PODS_READY, False, ConditionReason("WaitForStart", "its pods are gone")))
    return {"admission": None, "conditions": with_conditions(one.conditions, changes, now)}


def _reclaimed(one: Workload, pods: Sequence[Pod], count: int) -> dict[str, int]:
    """Count the rollout machines of the base that have left for good.

    Their quota is free, and never returns to this Workload.
    """
    held = sum(pod.machine.startswith(f"{ROLE_ROLLOUT}-") and pod.occupies for pod in pods)
    spare = one.counts.get(ROLLOUT, 0) - max(count, held)
    return {ROLLOUT: spare} if spare > one.reclaimed.get(ROLLOUT, 0) else {}


def _pods_ready(
    one: Workload, pods: Sequence[Pod], runners: Mapping[str, Runners], now: datetime
) -> tuple[str, bool, ConditionReason]:
    """Make the condition PodsReady: whether all admitted pods are ready, for the first time or again."""
    available = {pod.machine for pod in pods if pod.available}
    by_set = {name: sum(machine.rpartition("-")[0] == name for machine in available) for name in one.counts}
    written = one.condition(PODS_READY)
    started = written is not None and written.get("reason") in ("Started", "Recovered", "WaitForRecovery")
    by_set |= _ready_runners(one, runners, now, started)
    ready = all(by_set[name] >= one.slots(name) for name in one.counts)
    if ready:
        recovered = written is not None and written.get("reason") in ("WaitForRecovery", "Recovered")
        return PODS_READY, True, ConditionReason("Recovered" if recovered else "Started", "All pods are ready")
    return (
        PODS_READY,
        False,
        ConditionReason("WaitForRecovery" if started else "WaitForStart", "Not all pods are ready"),
    )


def _ready_runners(one: Workload, runners: Mapping[str, Runners], now: datetime, started: bool) -> dict[str, int]:
    """Count ready runners by pod set: all of them where as many are ready as are wanted now.

    The quota is for the most runners of an environment.
    """
    found = {}
    for name, some in runners.items():
        ready = single_episode_pods.ready(some, now, started)
        found[runner_set(name)] = one.slots(runner_set(name)) if 0 < some.wanted <= ready else ready
    return found
