"""`rljob logs` asks for the right pod, container and lines. A server stands in: an API server alone has no kubelet."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from typer.testing import CliRunner

from rljob_runtime.cli import app

PODS = [("coordinator", "coordinator-0", "2"), ("rollout", "rollout-0", "1"), ("rollout", "rollout-1", "3")]


def pods(role: str) -> dict[str, Any]:
    found = [one for one in [*PODS, ("rollout", "rollout-1", "2")] if one[0] == role]
    return {
        "items": [
            {
                "metadata": {
                    "name": f"demo-{machine}-{incarnation}",
                    "labels": {
                        "rljob.dev/role": role,
                        "rljob.dev/machine": machine,
                        "rljob.dev/incarnation": incarnation,
                    },
                }
            }
            for _, machine, incarnation in found
        ]
    }


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths of logs that were asked for. The log of each is its name twice."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path.endswith("/log"):
                paths.append(self.path)
                body = f"{url.path.split('/')[-2]}\n" * 2
            else:
                (selector,) = parse_qs(url.query)["labelSelector"]
                assert selector.startswith("rljob.dev/job=demo,rljob.dev/role=")
                body = json.dumps(pods(selector.rpartition("=")[2]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        config = {
            "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "lab"}}],
            "users": [{"name": "a", "user": {"token": "x"}}],
            "current-context": "a",
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ([], "demo-coordinator-0-2/log?container=main&follow=false"),
        (["--role", "rollout"], "demo-rollout-0-1/log?container=main&follow=false"),
        (["--machine", "rollout-1"], "demo-rollout-1-3/log?container=main&follow=false"),
        (["-c", "rewards", "--tail", "5", "-f"], "demo-coordinator-0-2/log?container=rewards&follow=true&tailLines=5"),
    ],
)
def test_the_log_of_the_newest_pod_is_printed(asked: list[str], arguments: list[str], path: str) -> None:
    result = CliRunner().invoke(app, ["logs", "demo", *arguments])
    assert result.exit_code == 0, result.stderr
    assert asked == [f"/api/v1/namespaces/lab/pods/{path}"]
    assert result.stdout == f"{path.split('/')[0]}\n" * 2
