"""Job watch: a job, its pods and the nodes, change by change, so that no short state is missed."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from typing import Any

from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import NODE, POD, RLJOB, Json, Resource
from rljob_kube.transport import RequestLimits

from .observation import JOB, Observation, observe

PAUSE = 0.2
"""Seconds between two attempts while the API server does not answer."""


WATCH_SECONDS = 50
"""Seconds until a watch is renewed."""

LIMITS = RequestLimits(seconds=10.0, attempts=1)
"""Of requests for what the campaign watches: one that fails is made again."""


class JobWatch:
    """Three watches in one thread, until `close`. One consumer takes what is `next`."""

    def __init__(self, connection: Connection, namespace: str, name: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._name = name
        self._job: dict[str, Any] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._seen: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._over = threading.Event()
        self.last = Observation(time.time())
        threading.Thread(target=lambda: asyncio.run(self._follow_all()), daemon=True).start()

    def next(self, seconds: float) -> Observation | None:
        """Return the next change, in order; None if there is none within `seconds`."""
        try:
            self.last = self._seen.get(timeout=max(seconds, 0.001))
        except queue.Empty:
            return None
        return self.last

    def close(self) -> None:
        """End the thread with its present watches."""
        self._over.set()

    async def _follow_all(self) -> None:
        async with KubeClient(Credentials(self._connection), limits=LIMITS).opened() as kube:
            await asyncio.gather(
                self._follow(kube, RLJOB, self._namespace, self._take_job, fields=f"metadata.name={self._name}"),
                self._follow(kube, POD, self._namespace, self._take_pod, labels=f"{JOB}={self._name}"),
                self._follow(kube, NODE, None, self._take_node),
            )

    async def _follow(
        self,
        kube: KubeClient,
        resource: Resource,
        namespace: str | None,
        take: Any,
        *,
        labels: str = "",
        fields: str = "",
    ) -> None:
        while not self._over.is_set():
            try:
                listed, version = await kube.read_with_version(
                    resource, namespace, _unchanged, labels=labels, fields=fields
                )
                take(None, listed)
                self._tell()
                changes = kube.watch(resource, namespace, version, WATCH_SECONDS, labels=labels, fields=fields)
                async for kind, found in changes:
                    take(kind, [found])
                    self._tell()
                    if self._over.is_set():
                        return
            except (ApiError, Unreachable):
                await asyncio.sleep(PAUSE)

    def _take_job(self, kind: str | None, items: list[dict[str, Any]]) -> None:
        self._job = {} if kind == "DELETED" or not items else items[0]

    def _take_pod(self, kind: str | None, items: list[dict[str, Any]]) -> None:
        _take(self._pods, kind, items)

    def _take_node(self, kind: str | None, items: list[dict[str, Any]]) -> None:
        _take(self._nodes, kind, items)

    def _tell(self) -> None:
        self._seen.put(observe(time.time(), self._job, self._pods.values(), self._nodes.values()))


def _unchanged(item: Json) -> Json:
    return item


def _take(known: dict[str, dict[str, Any]], kind: str | None, items: list[dict[str, Any]]) -> None:
    """Apply a change to the objects known by uid. `kind`: of the change; None for a complete list."""
    if kind is None:
        known.clear()
    for one in items:
        if kind == "DELETED":
            known.pop(one["metadata"]["uid"], None)
        else:
            known[one["metadata"]["uid"]] = one
