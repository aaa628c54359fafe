"""Observer: reads the cluster for one job: the job itself, and one LIST of its pods by label.

A job with environments has another LIST, of its Deployments. A LIST may come from the API server's cache, if that is as
fresh as everything this process has written or read. In a namespace with thousands of pods, a read from etcd would cost
all of them each time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from rljob_api.constants import LABEL_MANAGED_BY, MANAGED_BY_VALUE
from rljob_api.spec import RLJob
from rljob_kube.client import KubeClient
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import POD, Json, Resource
from rljob_operator.policies.base.kueue_objects import Kueue
from rljob_operator.policies.base.names import job_selector
from rljob_operator.policies.base.observation import Devices, Node, Observed, Silence, relevant_part, sort_pods
from rljob_operator.policies.base.runners import PROXY, Runners
from rljob_operator.policies.failure.losses import suspected_nodes

_logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""(namespace, name) of a job."""

MANAGED = f"{LABEL_MANAGED_BY}={MANAGED_BY_VALUE}"


class FreshLists:
    """Lists of one kind that are never older than what this process has read or written."""

    def __init__(self, kube: KubeClient, resource: Resource, keep: Callable[[Json], Json]) -> None:
        """`keep` reduces an object to what decisions need."""
        self._kube = kube
        self._resource = resource
        self._keep = keep
        self._floor = 0

    async def prime(self, namespaces: Sequence[str | None]) -> None:
        """Find the version that a list must have to show all writes of an earlier leader.

        It costs one read from etcd.
        """
        for namespace in namespaces:
            for version in await self._kube.read(
                self._resource, namespace, _version, labels=MANAGED, metadata_only=True
            ):
                self._floor = max(self._floor, version)

    def observe(self, items: Iterable[Json]) -> None:
        """Record objects as the server stored them. From now on no list may be older."""
        self._floor = max([self._floor, *map(_version, items)])

    async def list(self, namespace: str, labels: str) -> list[Json]:
        """List the objects with these labels, reduced."""
        kube, resource, keep, floor = self._kube, self._resource, self._keep, str(self._floor)
        try:
            return await kube.read(resource, namespace, keep, labels=labels, not_older_than=floor)
        except ApiError as error:
            if error.status != 504:
                raise
            # The cache did not catch up in time: read from etcd.
            return await kube.read(resource, namespace, keep, labels=labels)


class PodLister(FreshLists):
    """Lists of pods."""

    def __init__(self, kube: KubeClient) -> None:
        super().__init__(kube, POD, relevant_part)

    async def pods(self, namespace: str, job: str) -> list[Json]:
        """List the pods with the job's label, reduced to what decisions need."""
        return await self.list(namespace, job_selector(job))


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


async def _no_gang(job: RLJob) -> bool | None:
    return None


async def _no_runners(job: RLJob) -> Mapping[str, Runners]:
    return {}


@dataclass(frozen=True)
class Sources:
    """Sources of an observation.

    `silence` returns that of a job's coordinator, `nodes` nodes by name, and `silent` those with silent kubelets.
    `devices` returns what a job's claims need. `gang_served` tells whether its PodGroup can be created. `cluster`
    returns all visible nodes. `forged` returns the report about a forged status, by the job's uid. `runners` returns
    the Deployments of its environments.
    """

    pods: PodLister
    silence: Callable[[Key], Silence | None]
    nodes: Callable[[Iterable[str]], Awaitable[Mapping[str, Node]]]
    devices: Callable[[RLJob], Awaitable[Devices]]
    kueue: Callable[[RLJob], Awaitable[Kueue | None]]
    silent: Callable[[Key, Iterable[str]], frozenset[str]] = lambda key, nodes: frozenset()
    gang_served: Callable[[RLJob], Awaitable[bool | None]] = _no_gang
    cluster: Callable[[], tuple[Node, ...] | None] = lambda: None
    forged: Callable[[str], str | None] = lambda uid: None
    runners: Callable[[RLJob], Awaitable[Mapping[str, Runners]]] = _no_runners


class Observer:
    """Collects the input of a plan."""

    def __init__(self, sources: Sources, recheck: float = 900.0, clock: Callable[[], float] = monotonic) -> None:
        """`recheck`: seconds after which the Service, the Role and the other children are checked again."""
        self._sources = sources
        self._recheck = recheck
        self._clock = clock
        self._created: dict[str, float] = {}
        self._addresses: dict[str, int] = {}

    async def observe(self, job: RLJob) -> Observed:
        """Collect pods, nodes, the Lease, and whether the children were checked recently."""
        items = await self._sources.pods.pods(job.namespace, job.name)
        owned, foreign = sort_pods(job.metadata.uid, items)
        uid = job.metadata.uid
        if owned and uid not in self._created:
            # Pods are created after their children, so an earlier leader has checked these. The random part spreads
            # the checks of all jobs.
            self._created[uid] = self._clock() - self._recheck * random.random()
        created = self._created.get(uid)
        present = created is not None and self._clock() - created < self._recheck
        avoided = job.status.replacements.avoided_nodes if job.status.replacements is not None else ()
        nodes = await self._sources.nodes(
            [*(p.node for p in owned if p.node is not None), *(node.name for node in avoided)]
        )
        key = job.namespace, job.name
        silent = self._sources.silent(key, suspected_nodes(owned, job.status))
        silence = self._sources.silence(key)
        devices = await self._sources.devices(job)
        kueue = await self._sources.kueue(job)
        gang_served = await self._sources.gang_served(job)
        runners = dict(await self._sources.runners(job))
        proxy = runners.pop(PROXY, None)
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
            cluster=self._sources.cluster() if gang_served is not None else None,
            forged=self._sources.forged(uid),
            runners=runners,
            proxy=proxy,
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
