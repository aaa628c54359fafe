"""`rljob samples JOB` in a cluster: which requests it sends, and one line for whatever stands in the way."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from typer.testing import CliRunner

from rljob_api.constants import SAMPLES_KEY_HEADER, samples_key
from rljob_runtime.cli import app
from rljob_runtime.samples import Sample, SampleOutcome

KEY = "k" * 64
UID = "12345678-aaaa"
PODS = "/api/v1/namespaces/team/pods"
SECRET = "/api/v1/namespaces/team/secrets/demo-auth-12345678"
PROXY = f"{PODS}/demo-coordinator-2:8080/proxy"


def pod(name: str, phase: str, created: str) -> dict[str, object]:
    return {"metadata": {"name": name, "creationTimestamp": created}, "status": {"phase": phase}}


def line(number: int) -> str:
    one = Sample(round=5, prompt_id="0.1", sample=number, attempt=1, outcome=SampleOutcome.TRAINED, response="ключ")
    return one.to_json() + "\n"


class ApiServer:
    """Answers GET by path; `refused` paths with that status."""

    def __init__(self) -> None:
        first, second = line(0), line(1)
        self.answers: dict[str, object] = {
            "/apis/rljob.dev/v1alpha1/namespaces/team/rljobs/demo": {"metadata": {"name": "demo", "uid": UID}},
            SECRET: {"data": {"relay-key": base64.b64encode(f"{KEY}\n".encode()).decode()}},
            PODS: {
                "items": [
                    pod("demo-coordinator-1", "Running", "2026-11-27T08:00:00Z"),
                    pod("demo-coordinator-2", "Running", "2026-11-27T09:00:00Z"),
                    pod("demo-coordinator-3", "Failed", "2026-11-27T10:00:00Z"),
                ]
            },
            f"{PROXY}/samples": "4 5",
            f"{PROXY}/samples/5/0": first,
            f"{PROXY}/samples/5/{len(first.encode())}": second,
            f"{PROXY}/samples/5/{len((first + second).encode())}": "",
        }
        self.refused: dict[str, int] = {}
        self.keys: list[str | None] = []

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, str]:
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


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[ApiServer]:
    api = ApiServer()

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
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield api
        http.shutdown()


def test_the_newest_running_coordinator_is_asked_with_a_derived_key(server):
    done = CliRunner().invoke(app, ["samples", "demo", "--json"])
    assert done.exit_code == 0, done.output
    assert [json.loads(one)["sample"] for one in done.stdout.splitlines()] == [0, 1]
    assert set(server.keys) == {samples_key(KEY.encode())}
    assert KEY not in server.keys


def test_a_page_has_the_samples_of_evaluations_too(server, tmp_path):
    result, answer = '{"name": "sums", "round": 5}\n', line(7).replace("0.1", "evaluation:sums/5.1")
    for path, text in (("evaluations", result), ("rounds", ""), ("evaluation-samples/sums/5", answer)):
        server.answers |= {f"{PROXY}/{path}/0": text, f"{PROXY}/{path}/{len(text.encode())}": ""}
    server.answers |= {f"{PROXY}/evaluation-samples/sums": "5", f"{PROXY}/samples/4/0": ""}
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["samples", "demo", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "3 samples" in done.output
    assert '"promptId": "evaluation:sums/5.1", "sample": 7' in page.read_text()
    assert set(server.keys) == {samples_key(KEY.encode())}


def forbid_secret(server: ApiServer) -> None:
    server.refused[SECRET] = 403


def forbid_proxy(server: ApiServer) -> None:
    server.refused[f"{PROXY}/samples"] = 403


def end_pods(server: ApiServer) -> None:
    server.answers[PODS] = {"items": [pod("demo-coordinator-1", "Succeeded", "2026-11-27T08:00:00Z")]}


def remove_job(server: ApiServer) -> None:
    del server.answers["/apis/rljob.dev/v1alpha1/namespaces/team/rljobs/demo"]


NO_FOLDER = "demo: no folder here; in the cluster: "


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            forbid_secret,
            f"{NO_FOLDER}secret/demo-auth-12345678 in team: 403: {SECRET} Forbidden",
        ),
        (forbid_proxy, f"pod demo-coordinator-2:8080 in team: 403: {PROXY}/samples Forbidden"),
        (end_pods, f"{NO_FOLDER}rljob/demo in team: its coordinator does not run; read a copy of its volume instead"),
        (remove_job, f"{NO_FOLDER}rljob/demo in team: 404: is the CRD installed, and the name right?"),
    ],
)
def test_what_stands_in_the_way_has_one_line(server, change, message):
    change(server)
    done = CliRunner().invoke(app, ["samples", "demo"])
    assert done.exit_code == 1
    assert done.output.strip().splitlines() == [message]
