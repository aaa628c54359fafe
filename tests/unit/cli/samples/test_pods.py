"""`rljob samples JOB` in a cluster: which requests it sends, and one line for whatever stands in the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.constants import samples_key
from rljob_runtime.cli import app
from rljob_runtime.samples import Sample, SampleOutcome
from tests.support.pod_proxy import JOB, KEY, PODS, PROXY, SECRET, ApiServer, pod, served


def line(number: int) -> str:
    one = Sample(round=5, prompt_id="0.1", sample=number, attempt=1, outcome=SampleOutcome.TRAINED, response="ключ")
    return one.to_json() + "\n"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    api = ApiServer()
    first, second = line(0), line(1)
    api.answers |= {
        f"{PROXY}/samples": "4 5",
        f"{PROXY}/samples/5/0": first,
        f"{PROXY}/samples/5/{len(first.encode())}": second,
        f"{PROXY}/samples/5/{len((first + second).encode())}": "",
    }
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with served(api, tmp_path / "config"):
        yield api


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
    del server.answers[JOB]


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
