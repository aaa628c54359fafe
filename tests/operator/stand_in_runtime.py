"""Stands in for the runtime in pods of process nodes: ready at once, obeys the target, trains nothing.

    python stand_in_runtime.py coordinator|worker

The coordinator answers what the operator asks (target applied, machines drained, state saved) in `status.runtime`, with
the kubeconfig in `$STAND_IN_KUBECONFIG`, for process nodes mount no token.
"""

from __future__ import annotations

import http.server
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hack.cluster.kube import APPLY, Api, ApiError

BEAT_SECONDS = 0.2


class Ready(http.server.BaseHTTPRequestHandler):
    """Always ready."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Probes are not worth a line."""


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """The report of a coordinator that has done at once what the target asks."""
    status = job.get("status") or {}
    target, before = status.get("target") or {}, status.get("runtime") or {}
    rollout = {m["machine"] for m in status.get("members") or [] if m["role"] == "Rollout"}
    stage = "Suspended" if target.get("phase") == "Suspend" else "Generating"
    drained = sorted(rollout - set(target.get("machines") or []))
    said: dict[str, Any] = {"term": 1, "round": before.get("round", 0), "stage": stage}
    said |= {"applied": target["revision"]} if target else {}
    said |= {"drained": drained} if drained else {}
    news = any(said.get(field) != before.get(field) for field in ("stage", "applied", "drained"))
    said["round"] += stage == "Generating"
    return {**said, "event": before.get("event", 0) + news}


def coordinate() -> None:
    """Look and answer until killed."""
    api = Api(Path(os.environ["STAND_IN_KUBECONFIG"]))
    namespace, name = os.environ["RLJOB_NAMESPACE"], os.environ["RLJOB_NAME"]
    path = f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs/{name}"
    while True:
        try:
            body = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}}
            body |= {"status": {"runtime": answer(api.get(path))}}
            api.call("PATCH", f"{path}/status?fieldManager=rljob-coordinator&force=true", body, APPLY)
        except ApiError as error:
            print(error, flush=True)
        time.sleep(BEAT_SECONDS)


if __name__ == "__main__":
    serving = http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8080), Ready)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    if sys.argv[1] == "coordinator":
        coordinate()
    threading.Event().wait()
