"""Kueue's admission, watched from outside: no pod of a job exists without quota that is held for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hack.local_cluster import kube
from hack.local_cluster.private import kueue

RLJOBS = "apis/rljob.dev/v1alpha1"
WORKLOADS = f"apis/{kueue.GROUP}/v1beta2"
ENDED = ("Succeeded", "Failed")
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workloads.{kueue.GROUP}"


class Watch:
    """Looks at one namespace several times a second, in a thread of its own, until its context ends.

    `wrong` is what must not be: pods without quota, and a ClusterQueue that gives more than it has. Jobs have one
    rollout machine in their base. `also` is called at each look.
    """

    def __init__(
        self, api: kube.Api, namespace: str, queue: str, cpu: int | None = None, also: Callable[[], None] = lambda: None
    ) -> None:
        """`cpu`: what the ClusterQueue `queue` has, in thousandths of a processor; None where that changes."""
        self.wrong: set[str] = set()
        self.looks = 0
        self._api = api
        self._namespace = namespace
        self._queue = queue
        self._cpu = cpu
        self._also = also
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failed: Exception | None = None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        """Raises AssertionError where something was wrong, or nothing was checked."""
        assert self._failed is None, self._failed
        assert self.looks > 3
        assert not self.wrong, sorted(self.wrong)

    def list(self, group: str, kind: str) -> list[dict[str, Any]]:
        """Objects of the namespace."""
        found: list[dict[str, Any]] = self._api.get(f"/{group}/namespaces/{self._namespace}/{kind}")["items"]
        return found

    def _run(self) -> None:
        try:
            while not self._over.wait(0.3):
                self._look()
        except Exception as error:
            self._failed = error

    def _look(self) -> None:
        self._also()
        try:
            before = self._holding()
            # One that has ended takes nothing, though its object may last a moment longer than its quota.
            there = [pod for pod in self.list("api/v1", "pods") if pod["status"].get("phase") not in ENDED]
            held = before | self._holding()
            jobs = {job["metadata"]["name"] for job in self.list(RLJOBS, "rljobs")}
            queue = self._api.find(f"/{WORKLOADS}/clusterqueues/{self._queue}") or {}
        except kube.ApiError as error:
            # Kueue is not installed, or no one converts what is there.
            if error.status in (404, 500, 503):
                return
            raise
        definition = self._api.find(DEFINITION)
        if definition is None or "deletionTimestamp" in definition["metadata"]:
            return  # Kueue is being removed: its Workloads go with their definition, before anybody could act on it
        self.looks += 1
        for labels in _labels_of_pods(there, jobs):
            if (workload := _workload(labels)) not in held:
                self.wrong.add(f"{labels['rljob.dev/machine']} of {labels['rljob.dev/job']} without {workload}")
        for flavor in (queue.get("status") or {}).get("flavorsUsage") or ():
            used = {one["name"]: one.get("total", "0") for one in flavor["resources"]}.get("cpu", "0")
            if self._cpu is not None and _thousandths(used) > self._cpu:
                self.wrong.add(f"{used} of {self._cpu}m in use")

    def _holding(self) -> set[str]:
        """Workloads that hold quota."""
        items = self.list(WORKLOADS, "workloads")
        return {item["metadata"]["name"] for item in items if (item.get("status") or {}).get("admission")}


def _labels_of_pods(pods: list[dict[str, Any]], jobs: set[str]) -> list[dict[str, str]]:
    """Labels of the pods whose jobs are there.

    The objects of a deleted job are collected in any order. Its quota is free immediately, as that of
    Kueue's own kinds of jobs.
    """
    labels = [pod["metadata"].get("labels", {}) for pod in pods]
    return [one for one in labels if one.get("rljob.dev/job") in jobs]


def _workload(labels: dict[str, str]) -> str:
    """The Workload that a pod stands for."""
    job, machine = labels["rljob.dev/job"], labels["rljob.dev/machine"]
    return f"{job}-{machine}" if machine.startswith("rollout-") and machine != "rollout-0" else f"{job}-base"


def _thousandths(quantity: str) -> int:
    return int(quantity.removesuffix("m")) if quantity.endswith("m") else 1000 * int(quantity)
