"""Commands for jobs of a cluster, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from rljob_kube.resources import EVENT, Resource
from rljob_runtime.cli import app
from tests.support.operator.harness import Server, manifest

pytestmark = pytest.mark.cluster
CLAIM = Resource("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")


@pytest.fixture
def rljob(apiserver: Any, server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command, in a thread: it has an event loop of its own."""
    monkeypatch.setenv("KUBECONFIG", str(apiserver.kubeconfig))

    async def invoke(*arguments: str) -> Result:
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


async def test_a_job_is_submitted_listed_suspended_and_resumed(rljob, server, tmp_path) -> None:
    place = ("-n", server.namespace)
    assert (await rljob("list", *place)).stdout == "no RLJobs in this namespace; -A lists those of all namespaces\n"
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest("demo", server.namespace)))
    told = await rljob("submit", str(file), "--set", "spec.rounds=7", *place)
    assert told.exit_code == 0, told.stderr
    assert told.stdout.startswith(f"rljob/demo applied in {server.namespace}; watch it with: rljob status demo")
    assert (await server.job())["spec"]["rounds"] == 7
    header, row = (await rljob("list", *place)).stdout.splitlines()
    assert header.split() == ["NAME", "PHASE", "ROUND", "REWARD", "MACHINES", "AGE"]
    assert row.split()[:3] == ["demo", "Pending", "0/7"]
    everywhere = (await rljob("list", "-A")).stdout.splitlines()
    assert [server.namespace, "demo"] in [line.split()[:2] for line in everywhere]

    assert (await rljob("suspend", "demo", *place)).exit_code == 0
    assert (await server.job())["spec"]["suspend"] is True
    assert (await rljob("resume", "demo", *place)).stdout == f"rljob/demo in {server.namespace} resumes\n"
    assert (await server.job())["spec"]["suspend"] is False


async def test_what_a_server_refuses_is_its_own_message(rljob, server, tmp_path) -> None:
    file = tmp_path / "job.yaml"
    for seed in (1, 2):
        job = manifest("demo", server.namespace, data={"seed": seed})
        file.write_text(yaml.safe_dump(job))
        told = await rljob("submit", str(file))
    assert told.exit_code == 1
    assert "data.seed is immutable; make a new RLJob" in told.stderr
    missing = await rljob("suspend", "absent", "-n", server.namespace)
    assert (missing.exit_code, len(missing.stderr.splitlines())) == (1, 1)
    assert f"rljob/absent in {server.namespace}: 404" in missing.stderr


async def test_a_mistake_is_told_before_the_server_is_asked(rljob, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest(rounds=0)))
    told = await rljob("submit", str(file))
    assert told.exit_code == 2
    assert told.stderr == f"{file}: spec.rounds: 0 must be at least 1\n"


async def test_other_objects_of_the_file_are_named_and_not_applied(rljob, server, tmp_path) -> None:
    file = tmp_path / "job.yaml"
    claim = {"apiVersion": "v1", "kind": CLAIM.kind, "metadata": {"name": "demo"}}
    file.write_text(yaml.safe_dump_all([claim, manifest("demo", server.namespace)]))
    told = await rljob("submit", str(file))
    assert "holds PersistentVolumeClaim too, which is not applied" in told.stdout
    assert await server.kube.find(CLAIM, server.namespace, "demo") is None


async def test_events_of_the_job_and_its_pods_are_shown_in_their_order(rljob, server) -> None:
    await server.apply_job()
    place = ("-n", server.namespace)
    assert (await rljob("events", "demo", *place)).stdout.startswith("no events")
    targets = [("RLJob", "demo"), ("Pod", "demo-rollout-0-1"), ("Pod", "demonstration-x"), ("RLJob", "other")]
    for number, (kind, name) in enumerate(targets):
        event = {
            "apiVersion": "v1",
            "kind": EVENT.kind,
            "metadata": {"name": f"e{number}", "namespace": server.namespace},
            "involvedObject": {"kind": kind, "name": name, "namespace": server.namespace},
            "reason": f"Reason{number}",
            "message": "two\nlines",
            "type": "Normal",
            "count": 3,
            "lastTimestamp": f"2026-01-01T00:00:0{9 - number}Z",
        }
        await server.kube.create(EVENT, event)
    lines = (await rljob("events", "demo", *place)).stdout.splitlines()
    assert [line.split()[3] for line in lines[1:]] == ["Reason1", "Reason0"]
    assert lines[1].endswith("pod/demo-rollout-0-1  two lines")
    assert (await rljob("events", "absent", *place)).exit_code == 1


async def test_the_log_of_a_job_without_pods_says_so(rljob, server) -> None:
    await server.apply_job()
    told = await rljob("logs", "demo", "-n", server.namespace, "--machine", "rollout-1")
    assert told.exit_code == 1
    assert told.stderr == (f"rljob/demo in {server.namespace}: has no pod of rollout-1; its rollout pods: none yet\n")
