"""Kueue: reads what Kueue decided about jobs that name a queue.

Kueue may be installed, upgraded or removed at any time, so its API is discovered by each list. Each reconcile of a job
reads its Workloads from etcd. Between reconciles, one list for all jobs every few seconds wakes the jobs whose
Workloads have changed. It comes from the API server's cache, and is not made while no job names a queue.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from time import monotonic

from rljob_api.constants import LABEL_JOB
from rljob_api.spec import RLJob
from rljob_kube.client import ANY_VERSION, KubeClient
from rljob_kube.errors import ApiError
from rljob_kube.resources import PRIORITY_CLASS, RESOURCE_FLAVOR, WORKLOAD, WORKLOAD_PRIORITY_CLASS, Json
from rljob_operator.policies.base import kueue_objects as values
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.kueue_objects import Flavor, Kueue, Priority, base_name
from rljob_operator.policies.base.names import job_selector
from rljob_operator.readers.observer import MANAGED, Key, check_regularly

API = (WORKLOAD.group, WORKLOAD.version)


class KueueCache:
    """Workloads of all jobs as listed last, and those of one job as they are."""

    def __init__(
        self,
        kube: KubeClient,
        namespaces: Sequence[str | None],
        wake: Callable[[Key], None],
        *,
        interval: float = 2.0,
        fresh_seconds: float = 30.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Take the namespaces to list, and `wake`, which marks a job.

        `fresh_seconds`: how long a flavor is not read again.
        """
        self._kube = kube
        self._namespaces = namespaces
        self._wake = wake
        self._interval = interval
        self._fresh = fresh_seconds
        self._clock = clock
        self._queued_jobs: set[Key] = set()
        self._found: Mapping[Key, list[Json]] | None = None
        self._served = False
        self._flavors: dict[str, tuple[float, Flavor]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Check every `interval` seconds until `stop`."""
        await check_regularly(self.check, self._interval, stop, "Workloads could not be listed")

    async def check(self) -> None:
        """List all Workloads once.

        Wake the jobs whose Workloads changed. Wake all queued jobs when Kueue is installed or removed.
        """
        if self._found is not None and not self._queued_jobs and not self._found:
            return
        served, found = await self._kube.serves(*API), defaultdict[Key, list[Json]](list)
        for namespace in self._namespaces if served else ():
            try:
                items = await self._kube.read(
                    WORKLOAD, namespace, values.relevant_part, labels=MANAGED, not_older_than=ANY_VERSION
                )
            except ApiError as error:
                if not (error.not_found or error.status == 403):
                    raise
                served = False
                continue
            for item in items:
                meta = item["metadata"]
                found[meta["namespace"], meta["labels"].get(LABEL_JOB, "")].append(item)
        before = self._found or {}
        changed = {key for key in {*before, *found} if _signature(before.get(key, ())) != _signature(found[key])}
        if served != self._served:
            changed |= self._queued_jobs
        self._served, self._found = served, {key: items for key, items in found.items() if items}
        for key in changed:
            self._wake(key)

    def forget(self, key: Key) -> None:
        """Drop a deleted job."""
        self._queued_jobs.discard(key)

    async def facts(self, job: RLJob) -> Kueue | None:
        """Return what Kueue decided about this job; None for a job without a queue."""
        key = job.namespace, job.name
        if self._found is None:
            await self.check()
        queue = values.queue_of(job, (self._found or {}).get(key, ()))
        if queue is None:
            self._queued_jobs.discard(key)
            return None
        self._queued_jobs.add(key)
        if not await self._kube.serves(*API):
            return Kueue(queue, problem=_not_installed(queue))
        try:
            items = await self._kube.read(WORKLOAD, job.namespace, values.relevant_part, labels=job_selector(job.name))
        except ApiError as error:
            if not (error.not_found or error.status == 403):
                raise
            return Kueue(queue, problem=_not_installed(queue) if error.not_found else _not_enabled(queue))
        parsed = [values.parse_workload(item) for item in items]
        mine = {one.name: one for one in parsed if job.metadata.uid in one.owners}
        assigned = {name for one in mine.values() for given in one.assigned.values() for name in given.flavors}
        flavors = {flavor.name: flavor for flavor in await self._of_names(sorted(assigned))}
        priority = await self._priority(job) if base_name(job.name) not in mine else Priority()
        return Kueue(queue, None, mine, flavors, priority)

    async def _of_names(self, names: Iterable[str]) -> list[Flavor]:
        """Return the flavors of these names that exist."""
        now = self._clock()
        self._flavors = {name: kept for name, kept in self._flavors.items() if now - kept[0] < self._fresh}
        for name in names:
            if name not in self._flavors:
                item = await self._kube.find(RESOURCE_FLAVOR, None, name)
                if item is not None:
                    self._flavors[name] = now, values.parse_flavor(item)
        return [self._flavors[name][1] for name in names if name in self._flavors]

    async def _priority(self, job: RLJob) -> Priority | ConditionReason:
        """Find the priority by the job's label, else by the pods' class."""
        name = job.metadata.labels.get(values.PRIORITY_CLASS)
        if name:
            item = await self._kube.find(WORKLOAD_PRIORITY_CLASS, None, name)
            where = f"the label {values.PRIORITY_CLASS} names WorkloadPriorityClass {name}"
            return _absent(where) if item is None else Priority(int(item.get("value", 0)), values.API, name)
        name = job.spec.scheduling.priority_class_name
        if name:
            item = await self._kube.find(PRIORITY_CLASS, None, name)
            where = f"spec.scheduling.priorityClassName names PriorityClass {name}"
            return _absent(where) if item is None else Priority(int(item.get("value", 0)), PRIORITY_CLASS.group, name)
        return Priority()


def _absent(where: str) -> ConditionReason:
    return ConditionReason("PriorityClassNotFound", f"{where}, which does not exist: create it, or name another one")


def _not_installed(queue: str) -> ConditionReason:
    asks = f"the label {values.QUEUE} asks for quota of queue {queue}"
    advice = "install Kueue, or remove the label to run without a quota"
    return ConditionReason(
        "KueueNotInstalled", f"{asks}, and the cluster does not serve {values.API_VERSION}: {advice}"
    )


def _not_enabled(queue: str) -> ConditionReason:
    asks = f"the label {values.QUEUE} asks for quota of queue {queue}"
    advice = "set kueue.enabled in the values of the operator's chart"
    return ConditionReason("KueueNotEnabled", f"{asks}, and the operator may not read Workloads: {advice}")


def _signature(items: Iterable[Json]) -> Hashable:
    """Extract the part of a job's Workloads that decisions depend on.

    The operator's own conditions are left out.
    """
    found = []
    for item in sorted(items, key=lambda one: str(one["metadata"]["name"])):
        one = values.parse_workload(item)
        said = tuple(
            (c.get("type"), c.get("status"), c.get("reason"), c.get("message"))
            for c in one.conditions
            if c.get("type") != values.PODS_READY
        )
        found.append((one.uid, one.queue, one.active, one.deleting, one.reserved, said))
    return tuple(found)
