"""`rljob samples JOB` through a real API server: the operator's pod and Secret, the proxy, and a user's rights.

The kubelet's part is the test's: the pod's address is this machine, where the routes of a coordinator are served. An
API server proxies to no loopback address."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from rljob_api.constants import AUTH_RELAY_KEY, SAMPLES_KEY_HEADER, auth_secret_of
from rljob_kube.connection import Connection
from rljob_kube.resources import SECRET, Json
from rljob_runtime.cli import app, pod_files
from rljob_runtime.coordinator.samples.attempt_lines import AttemptLines
from rljob_runtime.entrypoints import sample_server
from rljob_runtime.entrypoints.health import serve
from rljob_runtime.entrypoints.sample_server import sample_routes
from rljob_runtime.samples import EvaluationSampleFolder, Sample, SampleFolder, SampleOutcome
from tests.support.operator.harness import Server
from tests.support.operator.users import limited_user

pytestmark = pytest.mark.cluster
RIGHTS: dict[str, Json] = {
    "rljobs": {"apiGroups": ["rljob.dev"], "resources": ["rljobs"], "verbs": ["get"]},
    "secrets": {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
    "pods": {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    "pods/proxy": {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]},
}
"""Those of the guide on samples."""
POD = "demo-coordinator-0-1"
Rljob = Callable[..., Awaitable[Result]]


@pytest.fixture
def address() -> str:
    """An address of this machine that is not loopback. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address besides loopback, and API servers proxy to none of those")
        return str(probe.getsockname()[0])


@pytest.fixture
def port(address: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, in place of that of each pod."""
    with socket.socket() as free:
        free.bind((address, 0))
        port = int(free.getsockname()[1])
    monkeypatch.setattr(pod_files, "HEALTH_PORT", port)
    return port


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder."""
    SampleFolder(tmp_path).write(4, [sample(number) for number in range(20)], keep=5)
    (tmp_path / "evaluations.jsonl").write_text('{"name": "sums", "round": 2}\n')
    EvaluationSampleFolder(tmp_path, "sums").write(2, [sample(number) for number in range(3)], keep=5)
    return tmp_path


def sample(number: int) -> Sample:
    return Sample(
        round=4, prompt_id="0.1", sample=number, attempt=1, outcome=SampleOutcome.TRAINED, response="ключ " * 50
    )


@pytest.fixture
async def key(operator: Any, server: Server, address: str) -> bytes:
    """The relay key of a job whose coordinator runs: the operator made its pod and its Secret."""
    await server.apply_job()
    await server.until(lambda job: (job.get("status") or {}).get("members"))
    await server.start_all()
    await server.set_pod(POD, podIP=address, podIPs=[{"ip": address}])
    uid = (await server.job())["metadata"]["uid"]
    secret = await server.kube.get(SECRET, server.namespace, auth_secret_of("demo", uid))
    return base64.b64decode(secret["data"][AUTH_RELAY_KEY]).strip()


@pytest.fixture
async def coordinator(key: bytes, folder: Path, address: str, port: int) -> AsyncIterator[None]:
    """What the coordinator's process serves."""
    async with serve(address, lambda: None, CollectorRegistry(), port, sample_routes(folder, key, AttemptLines())):
        yield


@pytest.fixture
def rljob(
    apiserver: Any, connection: Connection, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Rljob:
    """The command of a user with these rights, in a thread: it has an event loop of its own."""

    async def invoke(rights: set[str], *arguments: str) -> Result:
        user = await limited_user(server, connection, "reader", [RIGHTS[right] for right in sorted(rights)])
        config = yaml.safe_load(apiserver.kubeconfig.read_text())
        for one in config["users"]:
            one["user"] = {"token": user.token}
        (tmp_path / "reader").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "reader"))
        asked = ["samples", "demo", "-n", server.namespace, *arguments]
        result = await asyncio.to_thread(CliRunner().invoke, app, asked)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


@pytest.mark.usefixtures("coordinator")
@pytest.mark.parametrize(("more", "count"), [((), 20), (("--evaluation", "sums"), 3)])
async def test_four_rights_are_enough_to_read_a_pods_samples(
    rljob: Rljob, more: tuple[str, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_server, "MOST_BYTES", 900)  # several requests
    done = await rljob(set(RIGHTS), "--json", *more)
    assert done.exit_code == 0, done.output
    read = [Sample.from_json(line) for line in done.stdout.splitlines()]
    assert read == [sample(number) for number in range(count)]


@pytest.mark.usefixtures("coordinator")
@pytest.mark.parametrize("lacking", RIGHTS)
async def test_without_one_of_them_a_line_names_it(rljob: Rljob, server: Server, lacking: str) -> None:
    done = await rljob(set(RIGHTS) - {lacking})
    assert done.exit_code == 1, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    (verb,) = RIGHTS[lacking]["verbs"]
    (group,) = RIGHTS[lacking]["apiGroups"]
    assert f'"system:serviceaccount:{server.namespace}:reader" cannot {verb} resource "{lacking}"' in line
    assert f'in API group "{group}" in the namespace "{server.namespace}"' in line
    assert f"in {server.namespace}: 403: " in line


async def test_a_pod_refuses_a_key_that_is_not_its_own(
    rljob: Rljob, server: Server, key: bytes, folder: Path, address: str, port: int
) -> None:
    routes = sample_routes(folder, b"another job's", AttemptLines())
    async with serve(address, lambda: None, CollectorRegistry(), port, routes):
        done = await rljob(set(RIGHTS))
    assert done.exit_code == 1
    refusal = f"header {SAMPLES_KEY_HEADER} is missing or wrong"
    assert done.stderr == f"pod {POD}:{port} in {server.namespace}: 403: {refusal}\n"


@pytest.mark.usefixtures("key")
async def test_a_pod_that_does_not_answer_is_a_line(rljob: Rljob, server: Server, port: int) -> None:
    done = await rljob(set(RIGHTS))
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"pod {POD}:{port} in {server.namespace}: 503: ")
