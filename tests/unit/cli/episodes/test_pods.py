"""`rljob episodes JOB` in a cluster: what a folder says, and one line for whatever stands in the way."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.constants import samples_key
from rljob_runtime.cli import app
from rljob_runtime.coordinator.samples.attempt_lines import line_of
from rljob_runtime.coordinator.samples.attempt_rows import Place, Wanted, attempt_rows
from rljob_runtime.samples import SampleFolder
from tests.support.kept_run import write_run
from tests.support.pod_proxy import JOB, KEY, PODS, PROXY, ApiServer, pod, served

EPISODES = f"{PROXY}/episodes"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The job's volume. Its folder has the name of the job."""
    folder = tmp_path / "volume" / "demo"
    folder.mkdir(parents=True)
    write_run(folder)
    return folder


@pytest.fixture
def server(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    api = ApiServer()
    file = SampleFolder(run).file(1).read_text()
    texts = {"samples": "1", "samples/1/0": file, f"samples/1/{len(file.encode())}": "", "evaluations/0": ""}
    api.answers |= {f"{PROXY}/{path}": text for path, text in texts.items()}
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    with served(api, tmp_path / "config"):
        yield api


def serve(server: ApiServer, run: Path, path: str, wanted: Wanted) -> None:
    """Answer with one line at a time, as a server with little room does."""
    with closing(sqlite3.connect(run / "state.db")) as db:
        place = Place()
        for row in attempt_rows(db, wanted):
            server.answers[f"{EPISODES}/{path}/{place.attempt}/{place.turn}"] = line_of(row).decode()
            place = Place.of(row)
        server.answers[f"{EPISODES}/{path}/{place.attempt}/{place.turn}"] = ""


def episodes(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["episodes", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(("more", "path", "wanted"), [
    ((), "all", Wanted()),
    (("--round", "1"), "round-1", Wanted(step=1)),
    (("--attempt", "2"), "attempt-2", Wanted(attempt=2)),
    (("--attempt", "1", "--round", "1"), "attempt-1", Wanted(attempt=1)),
    (("--attempt", "1", "--round", "2"), "attempt-1", Wanted(attempt=1)),
])  # fmt: skip
def test_a_job_has_the_trajectories_of_its_folder(server, run, more, path, wanted):
    serve(server, run, f"tokens/{path}", wanted)
    found = episodes("demo", "--format", "atif", *more)
    assert found == episodes(str(run), "--format", "atif", *more)
    count = len(found.splitlines())
    assert count == {(): 3, ("--round", "1"): 3, ("--attempt", "2"): 1}.get(more, 2 if more[-1:] == ("1",) else 0)
    assert set(server.keys) == {samples_key(KEY.encode())}


def test_the_table_needs_no_tokens(server, run):
    serve(server, run, "sizes/all", Wanted(tokens=False))
    assert episodes("demo") == episodes(str(run))
    sizes = [json.loads(text) for path, text in server.answers.items() if "/sizes/" in path and text]
    assert [row["tokens"] for row in sizes if "turn" in row] == [3, 1, 2, 2, 1, 1, 1, 1]
    assert not any(row.get("logprobs") for row in sizes)


def test_texts_of_evaluations_are_read_too(server, run):
    serve(server, run, "tokens/all", Wanted())
    file = SampleFolder(run).file(1).read_text()
    result = '{"name": "held", "round": 1}\n'
    held = {"evaluation-samples/held": "1", "evaluation-samples/held/1/0": file}
    held |= {f"evaluation-samples/held/1/{len(file.encode())}": "", "samples": ""}
    held |= {"evaluations/0": result, f"evaluations/{len(result)}": ""}
    server.answers |= {f"{PROXY}/{path}": text for path, text in held.items()}
    assert episodes("demo", "--format", "atif") == episodes(str(run), "--format", "atif")


def test_a_namespace_asks_the_cluster_though_there_is_a_folder(server, run, monkeypatch):
    monkeypatch.chdir(run.parent)
    serve(server, run, "sizes/all", Wanted(tokens=False))
    episodes("demo")
    assert server.keys == []
    episodes("demo", "-n", "team")
    assert server.keys


def end_pods(server: ApiServer) -> None:
    server.answers[PODS] = {"items": [pod("demo-coordinator-1", "Succeeded", "2026-11-27T08:00:00Z")]}


def remove_job(server: ApiServer) -> None:
    del server.answers[JOB]


def serve_other(server: ApiServer) -> None:
    server.answers[f"{EPISODES}/sizes/all/0/0"] = "<html>\n"


NO_FOLDER = "demo: no folder here; in the cluster: "
POD = "pod demo-coordinator-2:8080 in team"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda server: None,
            f"{POD}: 404: its coordinator is of an earlier version, which serves no episodes; read a copy of its "
            "volume instead",
        ),
        (end_pods, f"{NO_FOLDER}rljob/demo in team: its coordinator does not run; read a copy of its volume instead"),
        (remove_job, f"{NO_FOLDER}rljob/demo in team: 404: is the CRD installed, and the name right?"),
        (serve_other, "the coordinator's answer: '<html>' is no line of an attempt"),
    ],
)
def test_what_stands_in_the_way_has_one_line(server, change, message):
    change(server)
    done = CliRunner().invoke(app, ["episodes", "demo"])
    assert done.exit_code == 1
    assert done.output.strip().splitlines() == [message]
