"""What Kueue says of jobs that name a queue. It may be installed, upgraded or removed at any time, so nobody relies on
its API: a list that is answered finds it, and one that is not finds it gone.

Each look at a job reads its Workloads from the store. In between one list for all jobs every few seconds, from the API
server's cache, wakes those whose Workloads have changed; without a job that asks for quota there is none.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from time import monotonic

from rljob_api.constants import LABEL_JOB
from rljob_api.spec import RLJob
from rljob_kube.client import ANY, Kube
from rljob_kube.errors import ApiError
from rljob_kube.resources import PRIORITY_CLASS, RESOURCE_FLAVOR, WORKLOAD, WORKLOAD_PRIORITY_CLASS, Json
from rljob_operator.observer import MANAGED, Key, check_regularly
from rljob_operator.policies.base import kueue_objects as values
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.kueue_objects import Flavor, Kueue, Priority, base_name
from rljob_operator.policies.base.names import job_selector

API = (WORKLOAD.group, WORKLOAD.version)


class KueueCache:
    """The Workloads of all jobs as they were listed last, and those of one job as they are."""

    def __init__(
        self,
        kube: Kube,
        namespaces: Sequence[str | None],
        wake: Callable[[Key], None],
        *,
        interval: float = 2.0,
        fresh_seconds: float = 30.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`fresh_seconds`: a flavor that was read is not read again for so long."""
        self._kube = kube
        self._namespaces = namespaces
        self._wake = wake
        self._interval = interval
        self._fresh = fresh_seconds
        self._clock = clock
        self._asking: set[Key] = set()
        self._found: Mapping[Key, list[Json]] | None = None
        self._served = False
        self._flavors: dict[str, tuple[float, Flavor]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Look every `interval` seconds until `stop`."""
        await check_regularly(self.look, self._interval, stop, "Workloads could not be listed")

    async def look(self) -> None:
        """One look at all Workloads; wakes the jobs whose Workloads changed, and all that ask when Kueue comes or
        goes."""
        if self._found is not None and not self._asking and not self._found:
            return
        served, found = await self._kube.serves(*API), defaultdict[Key, list[Json]](list)
        for namespace in self._namespaces if served else ():
            try:
                items = await self._kube.read(
                    WORKLOAD, namespace, values.relevant_part, labels=MANAGED, not_older_than=ANY
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
            changed |= self._asking
        self._served, self._found = served, {key: items for key, items in found.items() if items}
        for key in changed:
            self._wake(key)

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._asking.discard(key)

    async def facts(self, job: RLJob) -> Kueue | None:
        """What Kueue says of this job; None for one that asks for no quota."""
        key = job.namespace, job.name
        if self._found is None:
            await self.look()
        queue = values.queue_of(job, (self._found or {}).get(key, ()))
        if queue is None:
            self._asking.discard(key)
            return None
        self._asking.add(key)
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
        """Those of these flavors that exist."""
        now = self._clock()
        self._flavors = {name: kept for name, kept in self._flavors.items() if now - kept[0] < self._fresh}
        for name in names:
            if name not in self._flavors:
                item = await self._kube.find(RESOURCE_FLAVOR, None, name)
                if item is not None:
                    self._flavors[name] = now, values.parse_flavor(item)
        return [self._flavors[name][1] for name in names if name in self._flavors]

    async def _priority(self, job: RLJob) -> Priority | ConditionReason:
        """By the job's label, else by the pods' class."""
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
    return ConditionReason("PriorityClassNotFound", f"{where}, which does not exist: make it, or name another")


def _not_installed(queue: str) -> ConditionReason:
    asks = f"the label {values.QUEUE} asks for quota of queue {queue}"
    advice = "install Kueue, or take the label off to run without a quota"
    return ConditionReason(
        "KueueNotInstalled", f"{asks}, and the cluster does not serve {values.API_VERSION}: {advice}"
    )


def _not_enabled(queue: str) -> ConditionReason:
    asks = f"the label {values.QUEUE} asks for quota of queue {queue}"
    advice = "set kueue.enabled in the values of the operator's chart"
    return ConditionReason("KueueNotEnabled", f"{asks}, and the operator may not read Workloads: {advice}")


def _signature(items: Iterable[Json]) -> Hashable:
    """The part of a job's Workloads that decisions rest on. What the operator tells itself is not in it."""
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
