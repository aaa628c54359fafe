"""A job, its pods and the nodes as the API server tells of them, change by change, so that nothing short is missed."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from hack.local_cluster.kube import Api, ApiError

from .observation import JOB, Observation, observe

PAUSE = 0.2
"""Between two tries while the API server does not answer."""


class Watching:
    """Three watches in threads of their own, until `close`. One consumer asks for what is `next`."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api = api
        self._job: dict[str, Any] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._nodes: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._seen: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._over = threading.Event()
        jobs = f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs?fieldSelector=metadata.name%3D{name}"
        pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector={JOB.replace('/', '%2F')}%3D{name}"
        self.last = Observation(time.time())
        watched = ((jobs, self._take_job), (pods, self._take_pod), ("/api/v1/nodes", self._take_node))
        for path, take in watched:
            threading.Thread(target=self._follow, args=(path, take), daemon=True).start()

    def next(self, seconds: float) -> Observation | None:
        """The next change, in order; None when there is none within so many seconds."""
        try:
            self.last = self._seen.get(timeout=max(seconds, 0.001))
        except queue.Empty:
            return None
        return self.last

    def close(self) -> None:
        """The threads end with their present watch."""
        self._over.set()

    def _follow(self, path: str, take: Any) -> None:
        while not self._over.is_set():
            try:
                listed = self._api.get(path)
                with self._lock:
                    take(None, listed["items"])
                    self._tell()
                for event in self._api.watch(path, listed["metadata"]["resourceVersion"]):
                    with self._lock:
                        take(event["type"], [event["object"]])
                        self._tell()
                    if self._over.is_set():
                        return
            except ApiError:
                time.sleep(PAUSE)

    def _take_job(self, kind: str | None, items: list[dict[str, Any]]) -> None:
        self._job = {} if kind == "DELETED" or not items else items[0]

    def _take_pod(self, kind: str | None, items: list[dict[str, Any]]) -> None:
        _take(self._pods, kind, items)

    def _take_node(self, kind: str | None, items: list[dict[str, Any]]) -> None:
        _take(self._nodes, kind, items)

    def _tell(self) -> None:
        self._seen.put(observe(time.time(), self._job, self._pods.values(), self._nodes.values()))


def _take(known: dict[str, dict[str, Any]], kind: str | None, items: list[dict[str, Any]]) -> None:
    """Into what is known by uid. `kind`: of the change; None for a list of all."""
    if kind is None:
        known.clear()
    for one in items:
        if kind == "DELETED":
            known.pop(one["metadata"]["uid"], None)
        else:
            known[one["metadata"]["uid"]] = one
