"""Operator: leader election, watches, work queue, resync and health in one event loop."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

from rljob_api.constants import CRD_NAME
from rljob_api.parsing.nesting import allow_nesting
from rljob_kube import bounded_server
from rljob_kube.client import ANY_VERSION, KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.event_recorder import EventRecorder
from rljob_kube.leader_election import ElectionTimes, LeaderElector, LeadershipLost
from rljob_kube.resources import POD, RLJOB, Json, Resource
from rljob_operator import watch
from rljob_operator.api_access import ApiAccess
from rljob_operator.applier import Applier, WrittenObjects
from rljob_operator.health import Health, WatchLag
from rljob_operator.metrics import Metrics
from rljob_operator.optional_apis.device_claims import DeviceClaimCache
from rljob_operator.optional_apis.kueue import KueueCache
from rljob_operator.optional_apis.pod_groups import PodGroupApis
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.periods import resync_pause, resync_spread
from rljob_operator.readers.coordinator_leases import CoordinatorLeaseMonitor
from rljob_operator.readers.deployment_lister import DeploymentLister
from rljob_operator.readers.kubelet_leases import KubeletLeaseMonitor
from rljob_operator.readers.node_cache import NodeCache
from rljob_operator.readers.observer import Key, Observer, PodLister, Sources
from rljob_operator.reconciler import Reconciler
from rljob_operator.seals import Seals
from rljob_operator.workqueue import WorkQueue

_logger = logging.getLogger(__name__)


async def serve(make: Callable[[], Operator], stop: asyncio.Event) -> None:
    """Run one operator after another until `stop`.

    An operator that loses its leadership is followed by a new one, which stands by with an empty memory. If the process
    ended instead, the kubelet would delay each restart longer, and repairs would wait.
    """
    while not stop.is_set():
        try:
            await make().run(stop)
        except LeadershipLost as error:
            _logger.warning("%s; on standby", error)


@dataclass(frozen=True)
class Options:
    """Options of the operator's process. `config` holds what enters into plans."""

    config: Config = field(default_factory=Config)
    namespaces: tuple[str, ...] = ()
    """Namespaces to serve. Empty: all."""
    leader_elect: bool = True
    lease_namespace: str = "default"
    lease_name: str = "rljob-operator"
    identity: str = "rljob-operator"
    leader_lease_seconds: float = 15.0
    workers: int = 8
    resync_seconds: float = 300.0
    health_host: str = "0.0.0.0"
    health_port: int | None = 8080
    """None: no HTTP endpoints. 0: any free port."""

    @property
    def scopes(self) -> tuple[str | None, ...]:
        """Return the namespaces to list in. None spans all."""
        return self.namespaces or (None,)


class Operator:
    """One replica, from standby to the end of its leadership.

    `run` ends at `stop`, or raises `LeadershipLost`. After that nothing in its memory may be acted on.
    """

    def __init__(
        self,
        options: Options,
        *,
        connection: Connection | None = None,
        make_kube: Callable[..., KubeClient] = KubeClient,
    ) -> None:
        self.options = options
        self.metrics = Metrics()
        self.health = Health(self.metrics)
        self.ready = asyncio.Event()
        """Set when the watches have started."""
        self._connection = connection
        self._kube = make_kube(
            Credentials(connection), on_request=self.metrics.observe_request, on_retry=self.metrics.observe_retry
        )
        self._leader = _leader_elector(self._kube, options)
        self._pods = PodLister(self._kube)
        self._leases = CoordinatorLeaseMonitor(
            self._kube,
            options.scopes,
            lambda key: self.queue.add(key),
            interval=options.config.coordinator_lease_seconds / 3,
        )
        self._nodes = NodeCache(self._kube)
        self._deployments = DeploymentLister(self._kube)
        self._kubelets = KubeletLeaseMonitor(self._kube, lambda key: self.queue.add(key))
        devices = DeviceClaimCache(self._kube)
        self._kueue = KueueCache(self._kube, options.scopes, lambda key: self.queue.add(key))
        self._seals = Seals(self._kube)
        self._observer = Observer(
            Sources(
                self._pods,
                self._leases.silence,
                self._nodes.facts,
                devices=devices.facts,
                kueue=self._kueue.facts,
                silent=self._kubelets.silent,
                gang_served=PodGroupApis(self._kube).served,
                cluster=self._nodes.all,
                forged=self._seals.alarm,
                runners=self._deployments.runners,
            )
        )
        api = ApiAccess(self._kube, EventRecorder(self._kube), self.metrics)
        written = WrittenObjects(self._pods.observe, self._deployments.observe)
        applier = Applier(api, self._confirm_leader, written, self._seals)
        reconciler = Reconciler(api, self._observer, applier, options.config, forget=lambda key: self._forget(key, ""))
        self.queue: WorkQueue[Key] = WorkQueue(reconciler, failed=reconciler.failed, workers=options.workers)
        self._watch = watch.WatchHandlers(
            self.queue.add, self._forget, self._pods, self._nodes, self._deployments, self.metrics
        )
        self._lag = WatchLag()
        self.health.queue_seconds = self.queue.oldest_seconds
        self.health.queue_depth = self.queue.depth
        self.health.watch_seconds = lambda: self._lag.check(self._watch.job_versions)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`.

        Raises `LeadershipLost` when another replica may lead, and the exception that ends kopf.
        """
        allow_nesting()
        async with self._kube.opened(), self._endpoints():
            await self._preflight(stop)
            self.health.problem = None
            if self.options.leader_elect and not await self._leader.acquire(stop):
                return
            self.health.standby = False
            self.metrics.leader.set(1)
            try:
                await self._lead(stop)
            finally:
                self.metrics.leader.set(0)
                self.health.standby = True

    async def _lead(self, stop: asyncio.Event) -> None:
        """Run all tasks of a leader. The first task that ends stops the others."""
        await self._pods.prime(self.options.scopes)
        await self._deployments.prime(self.options.scopes)
        if not self.options.namespaces:
            await self._nodes.prime()
        ending = asyncio.Event()
        parts = {
            "kopf": self._kopf(ending),
            "queue": self.queue.run(ending),
            "resync": self._resync(ending),
            "leases": self._leases.run(ending),
            "kueue": self._kueue.run(ending),
        }
        if not self.options.namespaces:
            parts["kubelets"] = self._kubelets.run(ending)
        if self.options.leader_elect:
            parts["leader"] = self._leader.hold(ending)
        tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        stopping = asyncio.create_task(_until(stop), name="stop")
        try:
            done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            ending.set()
            _, late = await asyncio.wait(tasks, timeout=15.0)
            for task in late:
                _logger.warning("%s did not end in time", task.get_name())
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done - {stopping}:
            task.result()
            raise RuntimeError(f"{task.get_name()} ended without a request")

    async def _kopf(self, ending: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        found = watch.registry(
            self._watch,
            loop,
            self.ready.set,
            self._connection,
            nodes=self._nodes.open,
            deployments=self._deployments.open,
        )
        await watch.run_kopf(found, self.options.namespaces, ending)

    async def _confirm_leader(self) -> None:
        if self.options.leader_elect:
            await self._leader.confirm()

    def _forget(self, key: Key, uid: str) -> None:
        self.queue.forget(key)
        self._leases.forget(key)
        self._kubelets.silent(key, ())
        self._kueue.forget(key)
        self._observer.evict(uid)
        self._seals.forget(uid)

    # --- start --------------------------------------------------------------------------------------------------------

    async def _preflight(self, stop: asyncio.Event) -> None:
        """Wait until jobs and pods can be listed, and report what is missing."""
        while not stop.is_set():
            problem = await self._missing()
            if problem is None:
                return
            if problem != self.health.problem:
                _logger.error("%s; trying again", problem)
            self.health.problem = problem
            await _wait(stop, 5.0)

    async def _missing(self) -> str | None:
        for resource in (RLJOB, POD):
            for namespace in self.options.scopes:
                problem = await self._cannot_list(resource, namespace)
                if problem is not None:
                    return problem
        return None

    async def _cannot_list(self, resource: Resource, namespace: str | None) -> str | None:
        where = f"in namespace {namespace}" if namespace else "in all namespaces"
        try:
            await self._kube.list(resource, namespace, labels="rljob.dev/none", not_older_than=ANY_VERSION)
        except ApiError as error:
            if error.not_found:
                return f"the cluster does not know {CRD_NAME}: install the chart, or apply crds/rljob.yaml"
            if error.status == 403:
                return f"not allowed to list {resource.plural} {where}: {error.message}"
            return f"cannot list {resource.plural} {where}: {error}"
        except Unreachable as error:
            return f"the API server does not answer: {error}"
        return None

    # --- resync -------------------------------------------------------------------------------------------------------

    async def _resync(self, ending: asyncio.Event) -> None:
        """Mark all jobs at regular intervals.

        A new leader resyncs twice at first: a pod that was deleted just before the watch began is in no event, and the
        cache behind the first list may still have shown it.
        """
        first = True
        while not ending.is_set():
            try:
                await self._resync_once()
            except (ApiError, Unreachable) as error:
                _logger.warning("resync failed, trying again: %s", error)
                await _wait(ending, 10.0)
                continue
            await _wait(ending, resync_pause(first, self.options.resync_seconds))
            first = False

    async def _resync_once(self) -> None:
        first = self.health.resynced is None
        versions: dict[Key, str] = {}
        phases: Counter[str] = Counter()
        for namespace in self.options.scopes:
            for key, version, phase in await self._kube.read(RLJOB, namespace, _listed, not_older_than=ANY_VERSION):
                versions[key] = version
                phases[phase] += 1
        if not first:  # at the start the watch shows every job anyway
            spread = resync_spread(len(versions), self.options.resync_seconds)
            for key in versions:
                self.queue.add(key, random.uniform(0.0, spread))
        self._lag.listed(versions, self._watch.job_versions)
        self.metrics.jobs.clear()
        for phase, count in phases.items():
            self.metrics.jobs.labels(phase).set(count)
        self.health.resynced = monotonic()

    # --- endpoints ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _endpoints(self) -> AsyncIterator[None]:
        if self.options.health_port is None:
            yield
            return
        app, limits = self.health.application(), bounded_server.ConnectionLimits()
        async with bounded_server.serve(app, self.options.health_host, self.options.health_port, limits):
            yield


def _leader_elector(kube: KubeClient, options: Options) -> LeaderElector:
    return LeaderElector(
        kube,
        options.lease_namespace,
        options.lease_name,
        options.identity,
        ElectionTimes.lasting(options.leader_lease_seconds),
    )


def _listed(item: Json) -> tuple[Key, str, str]:
    """Return key, resource version and phase of a job."""
    meta = item["metadata"]
    key = meta["namespace"], meta["name"]
    return key, meta["resourceVersion"], (item.get("status") or {}).get("phase") or "Pending"


async def _until(event: asyncio.Event) -> None:
    await event.wait()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
