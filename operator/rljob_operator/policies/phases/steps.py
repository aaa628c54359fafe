"""Steps: what a plan consists of, and the plan that leads to a status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rljob_api.spec import RLJob
from rljob_api.status import RLJobStatus, Target
from rljob_kube.manifests.objects import Child, Deployment, Workload
from rljob_operator.policies.base.deadlines import earliest_wait
from rljob_operator.policies.base.decisions import Event, NewPod, Removal
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.base.runners import RunnerPod
from rljob_operator.policies.creation import Creation
from rljob_operator.policies.failure import losses as machine_losses
from rljob_operator.policies.kueue import settlement
from rljob_operator.policies.status.events import transitions


@dataclass(frozen=True)
class Plan:
    """What to do, in this order, and when to plan again."""

    children: tuple[Child, ...] = ()
    creations: tuple[Creation, ...] = ()
    deployments: tuple[Deployment, ...] = ()
    """Deployments of runners to apply, once the pods are created."""
    status: RLJobStatus | None = None
    """The operator's part, when it differs from the written one."""
    removals: tuple[Removal, ...] = ()
    events: tuple[Event, ...] = ()
    delete_job: bool = False
    again_seconds: float | None = None
    losses: tuple[machine_losses.MachineLoss, ...] = ()
    """The losses that the status counts for the first time."""
    asked: tuple[Workload, ...] = ()
    """Workloads to create."""
    settled: tuple[settlement.Settlement, ...] = ()
    """Changes of Workloads, the last step."""
    idle: tuple[Removal, ...] = ()
    """Pods that wait for the coordinator, and are deleted if it may not be created."""
    used_pods: tuple[RunnerPod, ...] = ()
    """Pods of runners that have had their one episode, to delete."""

    @property
    def empty(self) -> bool:
        """Tell whether there is nothing to do."""
        written = (self.children, self.creations, self.deployments, self.removals, self.used_pods)
        told = (self.events, self.asked, self.settled)
        return not any(written) and not any(told) and not self.delete_job and self.status is None


def leading_to(
    status: RLJobStatus,
    job: RLJob,
    removals: Iterable[Removal],
    losses: Sequence[machine_losses.MachineLoss],
    moments: Iterable[datetime | None],
    now: datetime,
) -> Plan:
    """Make the plan that leads to this status. It is planned again at the first of the `moments`."""
    return Plan(
        status=changed(job, status),
        removals=tuple(removals),
        events=tuple(transitions(job.status, status, losses)),
        again_seconds=earliest_wait(moments, now),
        losses=tuple(losses),
    )


def whole_seconds(status: RLJobStatus) -> RLJobStatus:
    """Round times as the API server returns them."""
    return RLJobStatus.model_validate(status.to_dict())


def changed(job: RLJob, status: RLJobStatus) -> RLJobStatus | None:
    """Return the operator's part if it differs from the written one."""
    mine = status.model_copy(update={"runtime": None})
    return None if mine == job.status.model_copy(update={"runtime": None}) else mine


def incarnations(before: RLJobStatus, observed: Observed, created: Iterable[NewPod]) -> dict[str, int]:
    """Return the highest incarnation of each machine."""
    numbers = dict(before.incarnations)
    for pod in observed.pods:
        numbers[pod.machine] = max(pod.incarnation, numbers.get(pod.machine, 0))
    return numbers | {new.machine: new.incarnation for new in created}


def drain_since(before: RLJobStatus, target: Target, now: datetime) -> datetime:
    """Return since when this target waits for machines to leave."""
    unchanged = before.target is not None and before.target.revision == target.revision
    return before.drain_since if unchanged and before.drain_since is not None else now
