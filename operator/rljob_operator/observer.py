"""Observer: reads the cluster for one job: the job itself, and one LIST of its pods by label.

The LIST may come from the API server's cache, if that is as fresh as everything this process has written or read. In a
namespace with thousands of pods, a read from etcd would cost all of them each time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from rljob_api.constants import COORDINATOR_LEASE_SECONDS, LABEL_MANAGED_BY, MANAGED_BY_VALUE
from rljob_api.spec import RLJob
from rljob_kube.client import ANY_VERSION, KubeClient
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import LEASE, POD, Json
from rljob_operator.policies.base.kueue_objects import Kueue
from rljob_operator.policies.base.names import job_selector
from rljob_operator.policies.base.observation import Devices, Node, Observed, Silence, relevant_part, sort_pods
from rljob_operator.policies.failure.losses import suspected_nodes

_logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""(namespace, name) of a job."""

MANAGED = f"{LABEL_MANAGED_BY}={MANAGED_BY_VALUE}"


class PodLister:
    """Lists of pods that are never older than what this process has read or written."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._floor = 0

    async def prime(self, namespaces: Sequence[str | None]) -> None:
        """Find the version that a list must have to show all writes of an earlier leader.

        It costs one read from etcd.
        """
        for namespace in namespaces:
            for version in await self._kube.read(POD, namespace, _version, labels=MANAGED, metadata_only=True):
                self._floor = max(self._floor, version)

    def observe(self, items: Iterable[Json]) -> None:
        """Record pods as the server stored them. From now on no list may be older."""
        self._floor = max([self._floor, *map(_version, items)])

    async def pods(self, namespace: str, job: str) -> list[Json]:
        """List the pods with the job's label, reduced to what decisions need."""
        labels = job_selector(job)
        try:
            return await self._kube.read(POD, namespace, relevant_part, labels=labels, not_older_than=str(self._floor))
        except ApiError as error:
            if error.status != 504:
                raise
            # The cache did not catch up in time: read from etcd.
            return await self._kube.read(POD, namespace, relevant_part, labels=labels)


def _version(item: Json) -> int:
    version = (item.get("metadata") or {}).get("resourceVersion") or ""
    return int(version) if version.isdigit() else 0


async def check_regularly(
    check: Callable[[], Awaitable[None]], seconds: float, stop: asyncio.Event, failed: str
) -> None:
    """Call `check` every so many seconds until `stop`.

    `failed` is logged when the API server does not answer as expected.
    """
    while not stop.is_set():
        try:
            await check()
        except (ApiError, Unreachable) as error:
            _logger.warning("%s: %s", failed, error)
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            continue


@dataclass(frozen=True)
class _ObservedLease:
    """Newest observed state of a Lease, and for how long it has not changed."""

    version: int
    renewed: str
    holder: str
    duration: float
    unchanged: float = 0.0
    confirmed: bool = False
    """A read from etcd shows no newer state."""
    unread: bool = False
    """It looked expired, and the read from etcd failed."""

    @property
    def expired(self) -> bool:
        return bool(self.holder) and self.unchanged > self.duration


class CoordinatorLeaseMonitor:
    """Monitor of coordinators that stop renewing their job's Lease: one LIST for all jobs every few seconds.

    It uses the local clock only: a Lease expires when it has been observed unchanged for its duration. Time in which
    this process was paused counts as two intervals at most. After an outage of the API server every Lease counts as
    new: a coordinator that could not renew has released its job, and needs time to return.

    The list comes from the server's cache, which may be stale while coordinators renew at other servers. So a Lease is
    read from etcd before its coordinator counts as silent.
    """

    def __init__(
        self,
        kube: KubeClient,
        namespaces: Sequence[str | None],
        wake: Callable[[Key], None],
        *,
        interval: float = 5.0,
        parallel: int = 16,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Take the namespaces to list, and `wake`, which marks a job.

        `parallel` bounds concurrent reads: with a stale cache all Leases look expired.
        """
        self._kube = kube
        self._namespaces = namespaces
        self._wake = wake
        self._interval = interval
        self._parallel = parallel
        self._clock = clock
        self._observed: dict[Key, _ObservedLease] = {}
        self._checked_at: float | None = None
        self._failed = False
        """The last check failed."""

    def silence(self, key: Key) -> Silence | None:
        """Return the silence of a job's coordinator, if its Lease has expired."""
        lease = self._observed.get(key)
        if lease is None or not lease.expired or not lease.confirmed:
            return None
        return Silence(lease.holder, lease.unchanged - lease.duration)

    async def run(self, stop: asyncio.Event) -> None:
        """Check every `interval` seconds until `stop`."""
        await check_regularly(self.check, self._interval, stop, "the jobs' Leases could not be listed")

    async def check(self) -> None:
        """Check all Leases once, and wake the jobs whose coordinator has just become silent."""
        listed: dict[Key, _ObservedLease] = {}
        try:
            for namespace in self._namespaces:
                listed |= await self._kube.read(LEASE, namespace, _keyed, labels=MANAGED, not_older_than=ANY_VERSION)
        except (ApiError, Unreachable):
            self._failed = True
            raise
        now = self._clock()
        gap = 0.0 if self._checked_at is None else now - self._checked_at
        passed, outage = min(gap, 2 * self._interval), self._failed and gap > 2 * self._interval
        self._checked_at, self._failed = now, False
        before = {} if outage else self._observed
        self._observed = {key: _merged(before.get(key), lease, passed) for key, lease in listed.items()}
        gate = asyncio.Semaphore(self._parallel)
        expired = [key for key, lease in self._observed.items() if lease.expired]
        await asyncio.gather(*(self._confirm(key, gate) for key in expired))
        for key in expired:
            if self.silence(key) is not None and not (key in before and before[key].confirmed):
                self._wake(key)

    async def _confirm(self, key: Key, gate: asyncio.Semaphore) -> None:
        """Read an expired Lease from etcd.

        If the read fails, no coordinator could renew either: the Lease counts as new once it can be read.
        """
        async with gate:
            try:
                item = await self._kube.find(LEASE, *key)
            except (ApiError, Unreachable) as error:
                _logger.warning("%s/%s: its Lease looks expired and could not be read: %s", *key, error)
                self._observed[key] = replace(self._observed[key], confirmed=False, unread=True)
                return
        if item is None:
            del self._observed[key]
            return
        known, read = self._observed[key], _observed(item)
        lease = read if known.unread else _merged(known, read, 0.0)
        self._observed[key] = replace(lease, confirmed=lease.expired)


def _keyed(item: Json) -> tuple[Key, _ObservedLease]:
    return (item["metadata"]["namespace"], item["metadata"]["name"]), _observed(item)


def _observed(item: Json) -> _ObservedLease:
    """Parse a Lease."""
    spec, version = item.get("spec") or {}, item["metadata"].get("resourceVersion") or ""
    return _ObservedLease(
        int(version) if version.isdigit() else 0,
        spec.get("renewTime") or "",
        spec.get("holderIdentity") or "",
        float(spec.get("leaseDurationSeconds") or COORDINATOR_LEASE_SECONDS),
    )


def _merged(known: _ObservedLease | None, read: _ObservedLease, passed: float) -> _ObservedLease:
    """Merge a Lease that was read again `passed` seconds later.

    A cache may show an older state than the known one.
    """
    if known is None:
        return read
    if read.version < known.version or (known.renewed, known.holder) == (read.renewed, read.holder):
        newer = max(known, read, key=lambda one: one.version)
        return replace(newer, unchanged=known.unchanged + passed, confirmed=known.confirmed, unread=known.unread)
    return read


async def _no_gang(job: RLJob) -> bool | None:
    return None


class Observer:
    """Collects the input of a plan."""

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
        """Take the sources of an observation.

        `nodes` returns nodes by name, and `silent` those with silent kubelets. `devices` returns what a job's claims
        need. `gang_served` tells whether its PodGroup can be created. `cluster` returns all visible nodes. `forged`
        returns the report about a forged status, by the job's uid.

        `recheck`: seconds after which the Service, the Role and the other children are checked again.
        """
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
        self._created: dict[str, float] = {}
        self._addresses: dict[str, int] = {}

    async def observe(self, job: RLJob) -> Observed:
        """Collect pods, nodes, the Lease, and whether the children were checked recently."""
        items = await self._pods.pods(job.namespace, job.name)
        owned, foreign = sort_pods(job.metadata.uid, items)
        uid = job.metadata.uid
        if owned and uid not in self._created:
            # Pods are created after their children, so an earlier leader has checked these. The random part spreads
            # the checks of all jobs.
            self._created[uid] = self._clock() - self._recheck * random.random()
        created = self._created.get(uid)
        present = created is not None and self._clock() - created < self._recheck
        avoided = job.status.replacements.avoided_nodes if job.status.replacements is not None else ()
        nodes = await self._nodes([*(p.node for p in owned if p.node is not None), *(node.name for node in avoided)])
        key = job.namespace, job.name
        silent = self._silent(key, suspected_nodes(owned, job.status))
        silence = self._leases.silence(key)
        devices = await self._devices(job)
        kueue = await self._kueue(job)
        gang_served = await self._gang_served(job)
        address = self._addresses.get(uid)
        return Observed(
            owned,
            foreign,
            silence,
            present,
            address,
            nodes,
            silent,
            devices,
            kueue,
            gang_served=gang_served,
            cluster=self._cluster() if gang_served is not None else None,
            forged=self._forged(uid),
        )

    def mark_created(self, job: RLJob) -> None:
        """Record that the children were created or checked just now."""
        self._created[job.metadata.uid] = self._clock()

    def set_address(self, job: RLJob, incarnation: int | None) -> None:
        """Record the incarnation that the coordinator's Service selects.

        None: it is about to change, or unknown.
        """
        if incarnation is None:
            self._addresses.pop(job.metadata.uid, None)
        else:
            self._addresses[job.metadata.uid] = incarnation

    def evict(self, uid: str) -> None:
        """Drop a deleted job."""
        self._created.pop(uid, None)
        self._addresses.pop(uid, None)
