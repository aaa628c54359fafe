"""Stands in for coordinators where pods are objects only: answers what the operator asks, and trains nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from hack.local_cluster.kube import APPLY, Api, ApiError

Job = dict[str, Any]


def answer(job: Job, *, completes: bool) -> Job:
    """The report of a coordinator that has done immediately what the target asks, and one more round.

    ``completes``: it ends with the spec's rounds; else it goes on without end.
    """
    status = job.get("status") or {}
    target, before = status.get("target") or {}, status.get("runtime") or {}
    rollout = {m["machine"] for m in status.get("members") or [] if m["role"] == "Rollout"}
    stage = "Suspended" if target.get("phase") == "Suspend" else "Generating"
    drained = sorted(rollout - set(target.get("machines") or []))
    said: Job = {"term": 1, "round": before.get("round", 0), "stage": stage}
    said |= {"applied": target["revision"]} if target else {}
    said |= {"drained": drained} if drained else {}
    said["round"] += stage == "Generating"
    if completes and said["round"] >= job["spec"]["rounds"]:
        said |= {"finished": {"outcome": "Complete"}}
    news = any(said.get(field) != before.get(field) for field in ("stage", "applied", "drained", "finished"))
    return {**said, "event": before.get("event", 0) + news}


class StandInCoordinators:
    """The coordinators of all jobs of a namespace, in a thread of this process. A coordinator answers while its pod is
    Ready."""

    def __init__(
        self, kubeconfig: Path, namespace: str, *, completes: bool = False, report_seconds: float = 1.0
    ) -> None:
        """``report_seconds``: between two reports without news, each with one more round. A real coordinator has 5."""
        self._api = Api(kubeconfig)
        self._jobs = f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs"
        self._pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector=rljob.dev/role%3Dcoordinator"
        self._completes = completes
        self._report_seconds = report_seconds
        self._look_seconds = min(1.0, report_seconds / 5)
        self._reported: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self.stall: list[str] = []
        """What the API server refused; a job that is gone, and one that has changed meanwhile, are none."""

    def __enter__(self) -> StandInCoordinators:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._stop.wait(self._look_seconds):
            try:
                self._look()
            except ApiError as error:
                if error.status not in (404, 409):
                    self.stall.append(str(error))

    def _look(self) -> None:
        ready = {
            pod["metadata"]["labels"]["rljob.dev/job"] for pod in self._api.get(self._pods)["items"] if _ready(pod)
        }
        for job in self._api.get(self._jobs)["items"] if ready else ():
            name, before = job["metadata"]["name"], (job.get("status") or {}).get("runtime") or {}
            if name not in ready or before.get("finished"):
                continue
            said = answer(job, completes=self._completes)
            due = self._reported.get(name, 0.0) + self._report_seconds
            if said["event"] != before.get("event") or time.monotonic() >= due:
                self._reported[name] = time.monotonic()
                body = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}}
                body |= {"status": {"runtime": said}}
                path = f"{self._jobs}/{name}/status?fieldManager=rljob-coordinator&force=true"
                self._api.call("PATCH", path, body, APPLY)


def _ready(pod: Job) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return "deletionTimestamp" not in pod["metadata"] and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )
