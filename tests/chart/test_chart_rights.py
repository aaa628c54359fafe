"""The operator at work with nothing but the rights the chart gives it: no request may come back as forbidden."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_tools import CHART, ROOT, Tools
from hack.cluster.process import free_ports

from established import until_established

pytestmark = pytest.mark.cluster

SYSTEM, JOBS = "rights-system", "rights-jobs"


def wait(what: str, holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.3)


@pytest.fixture(params=["cluster-wide", "namespaced"])
def operator(server: Tools, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """A running operator with its service account's token; gives its metrics' text."""
    server.kubectl("create", "namespace", JOBS)
    values = ["--set=watchNamespaces={" + JOBS + "}"] if request.param == "namespaced" else []
    server.helm(
        "install", "rljob", str(CHART), "--namespace", SYSTEM, "--create-namespace", "--set=replicas=0", *values
    )
    until_established(server.kubectl)
    deployment = json.loads(server.kubectl("-n", SYSTEM, "get", "deployment", "rljob", "-o", "json"))
    (port,) = free_ports(1)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(_as_service_account(server, tmp_path)),
        "POD_NAME": "operator-0",
        "POD_NAMESPACE": SYSTEM,
        "RLJOB_HEALTH_PORT": str(port),
    }
    log = tmp_path / "operator.log"
    with log.open("wb") as sink:
        command = [sys.executable, *container["command"][1:], *container["args"]]
        process = subprocess.Popen(command, env=environment, stdout=sink, stderr=sink)
    try:
        yield lambda: _http(f"http://127.0.0.1:{port}/metrics")
    finally:
        print(server.kubectl("-n", JOBS, "get", "rljobs,pods", "-o", "yaml"))
        process.terminate()
        ended = process.wait(30)
        print(log.read_text()[-5000:])  # shown when the test fails
        server.kubectl("delete", "rljobs", "--all", "-n", JOBS)
        server.helm("uninstall", "rljob", "--namespace", SYSTEM)
        server.kubectl("delete", "crd", "rljobs.rljob.dev", "--wait")
        server.kubectl("delete", "namespace", SYSTEM, JOBS)
    assert ended == 0


def _as_service_account(server: Tools, folder: Path) -> Path:
    """A kubeconfig whose only credential is a token of the chart's service account."""
    assert server.kubeconfig is not None
    config: dict[str, Any] = yaml.safe_load(server.kubeconfig.read_text())
    token = server.kubectl("-n", SYSTEM, "create", "token", "rljob", "--duration=1h").strip()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


def _http(url: str) -> str:
    with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())
    return ""


def answers(metrics: str) -> dict[tuple[str, str, str], float]:
    """(verb, resource, code) → number of answers."""
    found = {}
    for labels, value in re.findall(r"^rljob_operator_api_requests_total\{(.*?)\} (\S+)$", metrics, re.MULTILINE):
        named = dict(re.findall(r'(\w+)="(.*?)"', labels))
        found[named["verb"], named["resource"], named["code"]] = float(value)
    return found


def test_chart_rights_suffice(server: Tools, operator: Callable[[], str]) -> None:
    """Place, scale, suspend, resume, replace, delete: all of it with 2xx, and never a 401 or 403."""

    def job(path: str) -> str:
        return server.kubectl("-n", JOBS, "get", "rljob", "minimal", "-o", f"jsonpath={path}")

    def pods() -> list[str]:
        items = json.loads(server.kubectl("-n", JOBS, "get", "pods", "-o", "json"))["items"]
        return [item["metadata"]["name"] for item in items if "deletionTimestamp" not in item["metadata"]]

    server.kubectl("-n", JOBS, "apply", "-f", str(ROOT / "examples/minimal.yaml"))
    wait("pods of every role", lambda: len(pods()) == 3)
    owned = server.kubectl("-n", JOBS, "get", "svc,secret,sa,role,rolebinding,lease,networkpolicy,pdb", "-o", "name")
    assert {line.partition("/")[0].partition(".")[0] for line in owned.split() if "minimal" in line} == {
        *("service", "secret", "serviceaccount", "role", "rolebinding", "lease", "networkpolicy", "poddisruptionbudget")
    }
    server.kubectl("-n", JOBS, "scale", "rljob/minimal", "--replicas=2")
    wait("a second rollout machine", lambda: any("rollout-1" in name for name in pods()))
    server.kubectl("-n", JOBS, "delete", "pod", "minimal-rollout-0-1", "--wait=false")
    wait("its replacement", lambda: "minimal-rollout-0-2" in pods())
    suspend = '{"spec":{"suspend":true,"runPolicy":{"drainSeconds":1}}}'
    server.kubectl("-n", JOBS, "patch", "rljob", "minimal", "--type=merge", "-p", suspend)
    wait("no pods", lambda: pods() == [])
    wait("Suspended", lambda: job('{.status.conditions[?(@.type=="Suspended")].status}') == "True")
    assert "Created" in server.kubectl("-n", JOBS, "get", "events", "-o", "jsonpath={.items[*].reason}")

    seen = answers(operator())
    assert {resource for _, resource, _ in seen} >= {
        "rljobs",
        "pods",
        "services",
        "secrets",
        "roles",
        "leases",
        "events",
    }
    refused = {key: count for key, count in seen.items() if key[2] in ("401", "403")}
    assert refused == {}
