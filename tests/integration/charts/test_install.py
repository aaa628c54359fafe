"""The chart on a real API server, by real Helm: install, upgrade, uninstall, and who may do what afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.charts.tools import CHART, Tools
from tests.support.crd import until_established

pytestmark = pytest.mark.cluster

SYSTEM, JOBS = "rljob-system", "jobs"
JOB = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: kept, namespace: jobs}
spec:
  rounds: 1
  model: {source: package://rljob/toy}
  data: {prompts: {reasoningGym: {task: basic_arithmetic}}}
  rewards: [{name: correct, kind: ReasoningGym}]
  rollout: {machines: 1, engine: Reference}
"""


def upgrade(server: Tools, *values: str) -> None:
    server.helm("upgrade", "--install", "rljob", str(CHART), "--namespace", SYSTEM, "--create-namespace", *values)


@pytest.fixture
def installed(server: Tools) -> Iterator[Tools]:
    """A fresh release with the default values, and an empty namespace for jobs."""
    server.kubectl("create", "namespace", JOBS)
    upgrade(server)
    yield server
    server.helm("uninstall", "rljob", "--namespace", SYSTEM, "--ignore-not-found")
    server.kubectl("delete", "rljobs", "--all", "--all-namespaces", check=False)
    server.remove_crd()
    server.kubectl("delete", "namespace", JOBS, "--wait")


def test_chart_install_upgrade_uninstall(installed: Tools) -> None:
    """An upgrade changes what it should; an uninstall leaves the CRD and its jobs; a new install takes them over."""
    server = installed
    until_established(server.kubectl)
    server.kubectl("apply", "-f", "-", stdin=JOB)

    upgrade(
        server, "--set=image=rljob/operator:next,replicas=2,podDisruptionBudget.enabled=true,networkPolicy.enabled=true"
    )
    deployment = json.loads(server.kubectl("-n", SYSTEM, "get", "deployment", "rljob", "-o", "json"))
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "rljob/operator:next"
    assert deployment["spec"]["replicas"] == 2
    server.kubectl("-n", SYSTEM, "get", "poddisruptionbudget,networkpolicy", "rljob")

    server.helm("uninstall", "rljob", "--namespace", SYSTEM)
    kinds = "deployment,service,serviceaccount,role,rolebinding,clusterrole,clusterrolebinding"
    ours = ("--selector=app.kubernetes.io/instance=rljob", "--all-namespaces", "-o", "name")
    assert server.kubectl("get", kinds, *ours).strip() == ""
    assert server.kubectl("-n", JOBS, "get", "rljob", "-o", "name").strip() == "rljob.rljob.dev/kept"

    upgrade(server)
    server.kubectl("-n", JOBS, "get", "rljob", "kept")


def test_chart_install_again_changes_nothing(installed: Tools) -> None:
    """Helm with the same values writes no object again: generations stay."""

    def generations() -> dict[str, int]:
        listed = installed.kubectl("get", "crd,deployment", "--all-namespaces", "-o", "json")
        return {item["metadata"]["name"]: item["metadata"]["generation"] for item in json.loads(listed)["items"]}

    before = generations()
    upgrade(installed)
    assert generations() == before


def test_chart_second_release_names_the_clash(installed: Tools) -> None:
    """A second release must not take the first one's CRD silently."""
    told = installed.helm("install", "other", str(CHART), "--namespace", "elsewhere", "--create-namespace", check=False)
    assert "rljobs.rljob.dev" in told
    assert "other" in told
    beside = ("--set=crds.install=false,userRoles.create=false,watchNamespaces={jobs}", "--namespace", "elsewhere")
    installed.helm("install", "other", str(CHART), "--create-namespace", *beside)
    installed.helm("uninstall", "other", "--namespace", "elsewhere")
