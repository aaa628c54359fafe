"""Pod proxy: a stand-in for an API server, with a job `demo`, its Secret, and what its coordinator's pod serves."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from rljob_api.constants import SAMPLES_KEY_HEADER

KEY = "k" * 64
UID = "12345678-aaaa"
JOB = "/apis/rljob.dev/v1alpha1/namespaces/team/rljobs/demo"
PODS = "/api/v1/namespaces/team/pods"
SECRET = "/api/v1/namespaces/team/secrets/demo-auth-12345678"
PROXY = f"{PODS}/demo-coordinator-2:8080/proxy"


def pod(name: str, phase: str, created: str) -> dict[str, object]:
    """Return a pod of the coordinator."""
    return {"metadata": {"name": name, "creationTimestamp": created}, "status": {"phase": phase}}


class ApiServer:
    """Answers GET by path; `refused` paths with that status. `keys`: of the requests that reach the pod."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {
            JOB: {"metadata": {"name": "demo", "uid": UID}},
            SECRET: {"data": {"relay-key": base64.b64encode(f"{KEY}\n".encode()).decode()}},
            PODS: {
                "items": [
                    pod("demo-coordinator-1", "Running", "2026-11-27T08:00:00Z"),
                    pod("demo-coordinator-2", "Running", "2026-11-27T09:00:00Z"),
                    pod("demo-coordinator-3", "Failed", "2026-11-27T10:00:00Z"),
                ]
            },
        }
        self.refused: dict[str, int] = {}
        self.keys: list[str | None] = []

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, str]:
        """Return status and body."""
        path = request.path.partition("?")[0]
        if path.startswith(PROXY):
            self.keys.append(request.headers.get(SAMPLES_KEY_HEADER))
        if path in self.refused or path not in self.answers:
            status = self.refused.get(path, 404)
            reason = {403: "Forbidden", 404: "NotFound"}[status]
            return status, json.dumps(
                {"kind": "Status", "reason": reason, "message": f"{path} {reason}", "code": status}
            )
        found = self.answers[path]
        return 200, found if isinstance(found, str) else json.dumps(found)


@contextmanager
def served(api: ApiServer, kubeconfig: Path) -> Iterator[ApiServer]:
    """Serve, and write the kubeconfig of a user whose namespace is `team`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = api.answer(self)
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *given: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{http.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
            "current-context": "x",
        }
        kubeconfig.write_text(yaml.safe_dump(config))
        yield api
        http.shutdown()
