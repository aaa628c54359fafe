"""Watch: kopf's event handlers, which mark jobs in the work queue. `policies.event_filter` decides what matters.

`on.event` handlers write nothing to the objects. Timers, daemons and create or update handlers would add finalizers and
annotations.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import kopf

from rljob_api.constants import GROUP, LABEL_ENVIRONMENTS_OF, LABEL_JOB, PLURAL, VERSION
from rljob_kube.connection import Connection
from rljob_operator.kopf_login import KopfLogin
from rljob_operator.metrics import Metrics
from rljob_operator.policies.event_filter import (
    deployment_signature,
    job_signature,
    pod_signature,
    pod_start_failure,
    runner_pod_used,
    runner_start_failure,
    wake_delay,
)
from rljob_operator.readers.deployment_lister import DeploymentLister
from rljob_operator.readers.node_cache import NodeCache
from rljob_operator.readers.observer import MANAGED, Key, PodLister


class ChangeFilter:
    """Memory of the last signature of each watched object."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Hashable] = {}

    def changed(self, key: Hashable, signature: Hashable) -> bool:
        """Tell whether the signature differs from the last one. A new object counts as None."""
        if self._last.get(key) == signature:
            return False
        self._last[key] = signature
        return True

    def forget(self, key: Hashable) -> None:
        """Drop a deleted object."""
        self._last.pop(key, None)


class WatchHandlers:
    """Handlers that turn watch events into marks on the queue."""

    def __init__(
        self,
        mark: Callable[[Key, float], None],
        forget: Callable[[Key, str], None],
        pods: PodLister,
        nodes: NodeCache,
        deployments: DeploymentLister,
        metrics: Metrics,
    ):
        """Take the caches to update.

        `mark(key, seconds)` asks for a reconcile of the job after so many seconds.
        """
        self._mark = mark
        self._forget = forget
        self._pods = pods
        self._nodes = nodes
        self._deployments = deployments
        self._metrics = metrics
        self._relevance = ChangeFilter()
        self.job_versions: dict[Key, str] = {}
        """Newest resource version of each job in the watch. A resync compares with it."""

    def job_event(self, kind: str | None, body: Any) -> None:
        """Handle an RLJob that was listed (kind None), added, modified or deleted."""
        meta = body["metadata"]
        key = (meta["namespace"], meta["name"])
        if kind == "DELETED":
            self.job_versions.pop(key, None)
            self._relevance.forget(("job", key))
            self._forget(key, meta.get("uid", ""))
            return
        self.job_versions[key] = meta.get("resourceVersion", "")
        self._wake("rljobs", ("job", key), job_signature(body), key)

    def pod_event(self, kind: str | None, body: Any) -> None:
        """Handle a pod of a job that was listed, added, modified or deleted."""
        meta = body["metadata"]
        labels = meta.get("labels") or {}
        job = labels.get(LABEL_JOB)
        if not job:
            self._runner_event(kind, body, labels.get(LABEL_ENVIRONMENTS_OF, ""))
            return
        self._pods.observe([body])
        key = (meta["namespace"], job)
        identity = ("pod", meta.get("uid"))
        deleted = kind == "DELETED"
        self._nodes.hosts(meta.get("uid", ""), None if deleted else (body.get("spec") or {}).get("nodeName"), key)
        if deleted:
            self._relevance.forget(identity)
            self._relevance.forget((*identity, "plight"))
            self._metrics.events_seen.labels("pods", "true").inc()
            self._mark(key, 0.0)
            return
        self._wake("pods", identity, pod_signature(body), key)
        if self._relevance.changed((*identity, "plight"), pod_start_failure(body)):
            self._mark(key, wake_delay(reported_only=True))

    def _runner_event(self, kind: str | None, body: Any, job: str) -> None:
        """Handle a pod of runners: why it does not start, and whether it is used. Their Deployment counts them."""
        if not job:
            return
        meta = body["metadata"]
        key, identity = (meta["namespace"], job), ("runner", meta.get("uid"))
        self._deployments.observe_pods([body])
        failing = self._relevance.changed(identity, None if kind == "DELETED" else runner_start_failure(body))
        used = self._relevance.changed((*identity, "used"), None if kind == "DELETED" else runner_pod_used(body))
        if kind == "DELETED":
            self._relevance.forget(identity)
            self._relevance.forget((*identity, "used"))
        self._metrics.events_seen.labels("pods", str(failing or used).lower()).inc()
        if failing or used:
            self._mark(key, wake_delay(reported_only=not used))

    def deployment_event(self, kind: str | None, body: Any) -> None:
        """Handle a Deployment of runners that was listed, added, modified or deleted."""
        meta = body["metadata"]
        job = (meta.get("labels") or {}).get(LABEL_JOB)
        if not job:
            return
        key, identity = (meta["namespace"], job), ("deployment", meta.get("uid"))
        self._deployments.observe([body])
        if kind == "DELETED":
            self._relevance.forget(identity)
            self._metrics.events_seen.labels("deployments", "true").inc()
            self._mark(key, 0.0)
            return
        self._wake("deployments", identity, deployment_signature(body), key)

    def node_event(self, kind: str | None, body: Any) -> None:
        """Handle a node that was listed, added, modified or deleted.

        Kubelets report all day. Only a change of readiness, a fence or a deletion matters.
        """
        jobs = self._nodes.observe(kind, body)
        self._metrics.events_seen.labels("nodes", str(bool(jobs)).lower()).inc()
        for key in jobs:
            self._mark(key, 0.0)

    def _wake(self, resource: str, identity: Hashable, signature: Hashable, key: Key) -> None:
        relevant = self._relevance.changed(identity, signature)
        self._metrics.events_seen.labels(resource, str(relevant).lower()).inc()
        if relevant:
            self._mark(key, 0.0)


def registry(
    watch: WatchHandlers,
    loop: asyncio.AbstractEventLoop,
    started: Callable[[], None],
    connection: Connection | None = None,
    *,
    nodes: bool = False,
    deployments: bool = False,
) -> kopf.OperatorRegistry:
    """Register the handlers for a kopf that runs in its own thread.

    Events are passed on to `loop`, and `started` is called there once kopf runs. `connection` None: the pod's service
    account or the kubeconfig. `nodes`, `deployments`: watch them too.
    """
    handlers = kopf.OperatorRegistry()

    @kopf.on.startup(registry=handlers)
    async def startup(**_: Any) -> None:
        loop.call_soon_threadsafe(started)

    identity = KopfLogin(connection)

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await identity.connect()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def rljob(type: str | None, body: kopf.Body, **_: Any) -> None:
        loop.call_soon_threadsafe(watch.job_event, type, body)

    @kopf.on.event("", "v1", "pods", registry=handlers)
    async def pod(type: str | None, body: kopf.Body, **_: Any) -> None:
        loop.call_soon_threadsafe(watch.pod_event, type, body)

    if deployments:

        @kopf.on.event("apps", "v1", "deployments", registry=handlers)
        async def deployment(type: str | None, body: kopf.Body, **_: Any) -> None:
            loop.call_soon_threadsafe(watch.deployment_event, type, body)

    if nodes:

        @kopf.on.event("", "v1", "nodes", registry=handlers)
        async def node(type: str | None, body: kopf.Body, **_: Any) -> None:
            loop.call_soon_threadsafe(watch.node_event, type, body)

    return handlers


async def run_kopf(handlers: kopf.OperatorRegistry, namespaces: Sequence[str], stop: asyncio.Event) -> None:
    """Run kopf until `stop`. Raises the exception that ends it.

    kopf gets its own thread and event loop: when it ends it cancels every unknown task of its loop, and it handles the
    process's signals.
    """
    flag = threading.Event()

    def serve() -> None:
        asyncio.run(
            kopf.operator(
                registry=handlers,
                settings=settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=tuple(namespaces),
                stop_flag=flag,
            )
        )

    running = asyncio.create_task(asyncio.to_thread(serve), name="kopf's thread")
    stopping = asyncio.create_task(_until(stop), name="kopf's stop")
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        flag.set()
    await running


async def _until(event: asyncio.Event) -> None:
    await event.wait()


def settings() -> kopf.OperatorSettings:
    """Configure kopf: few rights, short timeouts, no writes of its own."""
    found = kopf.OperatorSettings()
    found.scanning.disabled = True
    found.peering.standalone = True
    found.posting.enabled = False
    found.process.ultimate_exiting_timeout = None  # else it kills the process when its loop ends late
    found.networking.request_timeout = 30
    found.networking.connect_timeout = 10
    found.watching.server_timeout = 300  # whole: a fraction is refused by the API server
    found.watching.client_timeout = 330
    found.watching.connect_timeout = 10
    found.watching.label_selectors["", "v1", "pods"] = MANAGED
    found.watching.label_selectors["apps", "v1", "deployments"] = MANAGED
    return found
