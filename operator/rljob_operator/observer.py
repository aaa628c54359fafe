"""Looks at the world on behalf of one job: the job itself, and one LIST of its pods by label.

The LIST may come from the API server's cache, if that is at least as fresh as everything this process has written or
seen: in a namespace with thousands of pods a read from the store itself would cost all of them each time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from rljob_api.constants import LABEL_MANAGED_BY, MANAGED_BY_VALUE
from rljob_api.spec import RLJob
from rljob_kube.client import ANY, Kube
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import LEASE, POD, Json
from rljob_operator.policies.base.kueue_objects import Kueue
from rljob_operator.policies.base.names import job_selector
from rljob_operator.policies.base.observation import Devices, Node, Observed, Silence, relevant_part, sort_pods
from rljob_operator.policies.failure.losses import doubted_nodes

_logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""(namespace, name) of a job."""

MANAGED = f"{LABEL_MANAGED_BY}={MANAGED_BY_VALUE}"


class PodLister:
    """Lists of pods that are never older than what this process knows."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._floor = 0

    async def prime(self, namespaces: Sequence[str | None]) -> None:
        """Learn how fresh a list must be to show what an earlier leader wrote: one read of the store at the start."""
        for namespace in namespaces:
            for version in await self._kube.read(POD, namespace, _version, labels=MANAGED, metadata_only=True):
                self._floor = max(self._floor, version)

    def observe(self, items: Iterable[Json]) -> None:
        """Pods as they came from the server: from now on no list may be older."""
        self._floor = max([self._floor, *map(_version, items)])

    async def pods(self, namespace: str, job: str) -> list[Json]:
        """The pods that carry the job's label, as far as they matter."""
        labels = job_selector(job)
        try:
            return await self._kube.read(POD, namespace, relevant_part, labels=labels, not_older_than=str(self._floor))
        except ApiError as error:
            if error.status != 504:
                raise
            # The cache did not catch up in time: ask the store.
            return await self._kube.read(POD, namespace, relevant_part, labels=labels)


def _version(item: Json) -> int:
    version = (item.get("metadata") or {}).get("resourceVersion") or ""
    return int(version) if version.isdigit() else 0


async def check_regularly(
    look: Callable[[], Awaitable[None]], seconds: float, stop: asyncio.Event, failed: str
) -> None:
    """Every so many seconds until `stop`; `failed` is logged where the API server does not answer as it should."""
    while not stop.is_set():
        try:
            await look()
        except (ApiError, Unreachable) as error:
            _logger.warning("%s: %s", failed, error)
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            continue


@dataclass(frozen=True)
class _Watched:
    """The newest state of a Lease that was seen, and for how long no newer one was."""

    version: int
    renewed: str
    holder: str
    duration: float
    unchanged: float = 0.0
    confirmed: bool = False
    """The store itself has no newer one."""
    unread: bool = False
    """It looked old, and could not be read from the store."""

    @property
    def expired(self) -> bool:
        return bool(self.holder) and self.unchanged > self.duration


class CoordinatorLeaseMonitor:
    """Notices coordinators that have stopped to renew their job's Lease: one LIST for all jobs every few seconds.

    Clocks of other machines do not enter: a Lease is old when *we* have seen it unchanged for its duration. Time in
    which we were stopped counts as two intervals at most. After an outage of the API server every Lease is new: a
    coordinator that could not renew has let go of its job, and needs time to come back. The list comes from the
    server's cache, which may stand still while coordinators renew at other servers; so before a coordinator counts as
    silent its Lease is read from the store.
    """

    def __init__(
        self,
        kube: Kube,
        namespaces: Sequence[str | None],
        wake: Callable[[Key], None],
        *,
        interval: float = 5.0,
        parallel: int = 16,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`parallel` bounds the reads that are under way together: where the cache stands still, all Leases look
        old."""
        self._kube = kube
        self._namespaces = namespaces
        self._wake = wake
        self._interval = interval
        self._parallel = parallel
        self._clock = clock
        self._watched: dict[Key, _Watched] = {}
        self._looked: float | None = None
        self._failed = False
        """The last look was in vain."""

    def silence(self, key: Key) -> Silence | None:
        """The silence of a job's coordinator, if its Lease has expired."""
        lease = self._watched.get(key)
        if lease is None or not lease.expired or not lease.confirmed:
            return None
        return Silence(lease.holder, lease.unchanged - lease.duration)

    async def run(self, stop: asyncio.Event) -> None:
        """Look every `interval` seconds until `stop`."""
        await check_regularly(self.look, self._interval, stop, "the jobs' Leases could not be listed")

    async def look(self) -> None:
        """One look at all Leases; wakes the jobs whose coordinator has just fallen silent."""
        listed: dict[Key, _Watched] = {}
        try:
            for namespace in self._namespaces:
                listed |= await self._kube.read(LEASE, namespace, _keyed, labels=MANAGED, not_older_than=ANY)
        except (ApiError, Unreachable):
            self._failed = True
            raise
        now = self._clock()
        gap = 0.0 if self._looked is None else now - self._looked
        passed, outage = min(gap, 2 * self._interval), self._failed and gap > 2 * self._interval
        self._looked, self._failed = now, False
        before = {} if outage else self._watched
        self._watched = {key: _older(before.get(key), lease, passed) for key, lease in listed.items()}
        gate = asyncio.Semaphore(self._parallel)
        expired = [key for key, lease in self._watched.items() if lease.expired]
        await asyncio.gather(*(self._confirm(key, gate) for key in expired))
        for key in expired:
            if self.silence(key) is not None and not (key in before and before[key].confirmed):
                self._wake(key)

    async def _confirm(self, key: Key, gate: asyncio.Semaphore) -> None:
        """Read an old Lease from the store. Where that fails nobody could renew it either: once it can be read, it is
        new."""
        async with gate:
            try:
                item = await self._kube.find(LEASE, *key)
            except (ApiError, Unreachable) as error:
                _logger.warning("%s/%s: its Lease looks old and could not be read: %s", *key, error)
                self._watched[key] = replace(self._watched[key], confirmed=False, unread=True)
                return
        if item is None:
            del self._watched[key]
            return
        known, read = self._watched[key], _watched(item)
        lease = read if known.unread else _older(known, read, 0.0)
        self._watched[key] = replace(lease, confirmed=lease.expired)


def _keyed(item: Json) -> tuple[Key, _Watched]:
    return (item["metadata"]["namespace"], item["metadata"]["name"]), _watched(item)


def _watched(item: Json) -> _Watched:
    """A Lease as it was read."""
    spec, version = item.get("spec") or {}, item["metadata"].get("resourceVersion") or ""
    return _Watched(
        int(version) if version.isdigit() else 0,
        spec.get("renewTime") or "",
        spec.get("holderIdentity") or "",
        float(spec.get("leaseDurationSeconds") or 15),
    )


def _older(known: _Watched | None, read: _Watched, passed: float) -> _Watched:
    """What is known of a Lease after it was read again, `passed` seconds later. What a cache shows may be older than
    what is known."""
    if known is None:
        return read
    if read.version < known.version or (known.renewed, known.holder) == (read.renewed, read.holder):
        newer = max(known, read, key=lambda one: one.version)
        return replace(newer, unchanged=known.unchanged + passed, confirmed=known.confirmed, unread=known.unread)
    return read


async def _no_gang(job: RLJob) -> bool | None:
    return None


class Observer:
    """Puts together what a plan is made from."""

    def __init__(
        self,
        pods: PodLister,
        leases: CoordinatorLeaseMonitor,
        nodes: Callable[[Iterable[str]], Awaitable[Mapping[str, Node]]],
        silent: Callable[[Key, Iterable[str]], frozenset[str]] = lambda key, nodes: frozenset(),
        *,
        devices: Callable[[RLJob], Awaitable[Devices]],
        kueue: Callable[[RLJob], Awaitable[Kueue | None]],
        gang_served: Callable[[RLJob], Awaitable[bool | None]] = _no_gang,
        cluster: Callable[[], tuple[Node, ...] | None] = lambda: None,
        forged: Callable[[str], str | None] = lambda uid: None,
        recheck: float = 900.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`recheck` is after how many seconds the Service, Role and so on of a job are looked at again. `nodes` gives
        what is known of nodes by name, `silent` those of them whose kubelets say nothing any more. `devices` gives
        what a job's claims need, `gang_served` whether its PodGroup can be made, `cluster` all nodes that may
        be seen, `forged` what there is to tell of a status that others wrote, by the job's uid."""
        self._nodes = nodes
        self._devices = devices
        self._kueue = kueue
        self._silent = silent
        self._gang_served = gang_served
        self._cluster = cluster
        self._forged = forged
        self._pods = pods
        self._leases = leases
        self._recheck = recheck
        self._clock = clock
        self._ensured: dict[str, float] = {}
        self._addressed: dict[str, int] = {}

    async def observe(self, job: RLJob) -> Observed:
        """The pods, their nodes, the Lease, and whether the children were seen to lately."""
        items = await self._pods.pods(job.namespace, job.name)
        owned, foreign = sort_pods(job.metadata.uid, items)
        uid = job.metadata.uid
        if owned and uid not in self._ensured:
            # Pods are made after their children. An earlier leader saw to them; we do in some time, not all jobs at
            # once.
            self._ensured[uid] = self._clock() - self._recheck * random.random()
        ensured = self._ensured.get(uid)
        present = ensured is not None and self._clock() - ensured < self._recheck
        avoided = job.status.replacements.avoided_nodes if job.status.replacements is not None else ()
        nodes = await self._nodes([*(p.node for p in owned if p.node is not None), *(node.name for node in avoided)])
        key = job.namespace, job.name
        silent = self._silent(key, doubted_nodes(owned, job.status))
        silence = self._leases.silence(key)
        devices = await self._devices(job)
        kueue = await self._kueue(job)
        gang_served = await self._gang_served(job)
        addressed = self._addressed.get(uid)
        return Observed(
            owned,
            foreign,
            silence,
            present,
            addressed,
            nodes,
            silent,
            devices,
            kueue,
            gang_served=gang_served,
            cluster=self._cluster() if gang_served is not None else None,
            forged=self._forged(uid),
        )

    def ensured(self, job: RLJob) -> None:
        """The children were made or checked just now."""
        self._ensured[job.metadata.uid] = self._clock()

    def addressed(self, job: RLJob, incarnation: int | None) -> None:
        """The coordinator's Service selects this incarnation now. None: that is about to change, or nobody knows."""
        if incarnation is None:
            self._addressed.pop(job.metadata.uid, None)
        else:
            self._addressed[job.metadata.uid] = incarnation

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._ensured.pop(uid, None)
        self._addressed.pop(uid, None)
