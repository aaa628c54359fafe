"""The operator at work with nothing but the rights the chart gives it: no request may come back as forbidden."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.charts.operator_process import OperatorProcess, operator_process, wait
from tests.support.charts.tools import CHART, Tools
from tests.support.crd import until_established
from tests.support.paths import ROOT
from tests.support.rows import slow

pytestmark = pytest.mark.cluster

SYSTEM, JOBS = "rights-system", "rights-jobs"


@pytest.fixture(params=["cluster-wide", *slow("namespaced")])
def operator(server: Tools, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OperatorProcess]:
    """A running operator with its service account's token."""
    server.kubectl("create", "namespace", JOBS)
    values = ["--set=watchNamespaces={" + JOBS + "}"] if request.param == "namespaced" else []
    server.helm(
        "install", "rljob", str(CHART), "--namespace", SYSTEM, "--create-namespace", "--set=replicas=0", *values
    )
    until_established(server.kubectl)
    for kind, namespace in (("pods", JOBS), ("leases.coordination.k8s.io", SYSTEM)):
        until_allowed(server, kind, namespace)
    try:
        with operator_process(server, SYSTEM, tmp_path) as process:
            yield process
            print(server.kubectl("-n", JOBS, "get", "rljobs,pods", "-o", "yaml"))
    finally:
        server.kubectl("delete", "rljobs", "--all", "-n", JOBS)
        server.helm("uninstall", "rljob", "--namespace", SYSTEM)
        server.remove_crd()
        server.kubectl("delete", "namespace", SYSTEM, JOBS)


def until_allowed(server: Tools, kind: str, namespace: str) -> None:
    """The authorizer learns of the chart's roles and bindings a moment after they are written."""
    asked = ("auth", "can-i", "create", kind, "-n", namespace, f"--as=system:serviceaccount:{SYSTEM}:rljob")
    wait(f"the right to create {kind}", lambda: server.kubectl(*asked, check=False).startswith("yes"))


def answers(metrics: str) -> dict[tuple[str, str, str], float]:
    """(verb, resource, code) → number of answers."""
    found = {}
    for labels, value in re.findall(r"^rljob_operator_api_requests_total\{(.*?)\} (\S+)$", metrics, re.MULTILINE):
        named = dict(re.findall(r'(\w+)="(.*?)"', labels))
        found[named["verb"], named["resource"], named["code"]] = float(value)
    return found


def test_chart_rights_suffice(server: Tools, operator: OperatorProcess) -> None:
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
    # A pod that goes before it is in the status was never counted, and comes back under its own name.
    wait("both are members", lambda: {"rollout-0", "rollout-1"} <= set(job("{.status.members[*].machine}").split()))
    server.kubectl("-n", JOBS, "delete", "pod", "minimal-rollout-0-1", "--wait=false")
    wait("its replacement", lambda: "minimal-rollout-0-2" in pods())
    suspend = '{"spec":{"suspend":true,"runPolicy":{"drainSeconds":1}}}'
    server.kubectl("-n", JOBS, "patch", "rljob", "minimal", "--type=merge", "-p", suspend)
    wait("no pods", lambda: pods() == [])
    wait("Suspended", lambda: job('{.status.conditions[?(@.type=="Suspended")].status}') == "True")
    assert "Created" in server.kubectl("-n", JOBS, "get", "events", "-o", "jsonpath={.items[*].reason}")

    seen = answers(operator.metrics())
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
