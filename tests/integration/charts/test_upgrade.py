"""From the first release to this one by real Helm under a running job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.local_cluster.private.kwok import FakeNodes
from rljob_api import load
from rljob_api.constants import SCHEMA_REVISION, SCHEMA_REVISION_ANNOTATION
from rljob_runtime.training.presets import parts_of
from tests.support.charts.operator_process import operator_process, wait
from tests.support.charts.releases import JOBS, SYSTEM, release
from tests.support.charts.tools import CHART, Tools
from tests.support.crd import FIRST_CHART, until_established, until_of_this_release
from tests.support.operator.fake_life import RUNNING
from tests.support.operator.harness import condition
from tests.support.operator.stand_in_coordinator import StandInCoordinators
from tests.support.paths import ROOT
from tests.support.rows import slow

pytestmark = pytest.mark.cluster

NO_PODS = "--set=replicas=0"
EXAMPLE = ROOT / "examples/minimal.yaml"
OWNED = "pods,services,secrets,serviceaccounts,roles,rolebindings,leases,networkpolicies,poddisruptionbudgets"


def uids(server: Tools) -> dict[str, str]:
    """Kind and name of everything that the jobs own, and its uid."""
    listed = json.loads(server.kubectl("-n", JOBS, "get", OWNED, "-o", "json"))["items"]
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["uid"]
        for item in listed
        if any(owner["kind"] == "RLJob" for owner in item["metadata"].get("ownerReferences", []))
    }


def pods(server: Tools) -> set[str]:
    items = json.loads(server.kubectl("-n", JOBS, "get", "pods", "-o", "json"))["items"]
    return {item["metadata"]["name"] for item in items if "deletionTimestamp" not in item["metadata"]}


def operator_pods(server: Tools) -> list[str]:
    """The uids of the operator's own pods, which the release's Deployment has."""
    items = json.loads(server.kubectl("-n", SYSTEM, "get", "pods", "-o", "json"))["items"]
    return [item["metadata"]["uid"] for item in items if "deletionTimestamp" not in item["metadata"]]


def test_chart_upgrade_under_a_running_job(jobs: Tools, chart_nodes: FakeNodes, tmp_path: Path) -> None:
    """The chart of the old release, then the new one, each until its Deployment is ready. The job keeps its pods,
    objects, spec and status, and its rounds go on. What is stored is valid under the new schema. The operator goes on
    with it.

    kwok stands in for the kubelets, so the operator's own pod computes nothing: beside it, this checkout's operator is
    a process, under both charts. Objects that the old one made: `test_first_release.py`."""
    server = jobs

    def job(name: str = "minimal") -> dict[str, Any]:
        return server.json("rljob", name, "-n", JOBS)

    def members() -> set[str]:
        found = (job().get("status") or {}).get("members") or []
        return {f"minimal-{one['machine']}-{one['incarnation']}" for one in found}

    def running(machines: int) -> bool:
        status = job().get("status") or {}
        return status.get("rollout", {}).get("ready") == machines and condition(job(), "Ready") == RUNNING

    def round_() -> int:
        found: int = job()["status"]["runtime"]["round"]
        return found

    release(server, FIRST_CHART, "--wait")
    until_established(server.kubectl)
    for example in (EXAMPLE, ROOT / "examples/code-rewards.yaml"):
        document = yaml.safe_load(example.read_text())
        document["spec"]["suspend"] = example is not EXAMPLE
        document["spec"].pop("samples", None)  # unknown to the earlier release
        server.kubectl("-n", JOBS, "apply", "--server-side", "-f", "-", stdin=json.dumps(document))
    with StandInCoordinators(chart_nodes.server.kubeconfig, JOBS) as coordinators:
        with operator_process(server, SYSTEM, tmp_path):
            wait("a job that runs", lambda: running(1))
            wait("members", lambda: members() == pods(server))
            wait("rounds", lambda: round_() > 1)
        before, owned, operators = job(), uids(server), operator_pods(server)
        other = job("code-rewards")
        assert len(owned) >= 11, owned
        assert len(members()) == 3

        reached = round_()
        release(server, CHART, "--wait", "--set=image=rljob/operator:next")
        installed = server.json("crd", "rljobs.rljob.dev")["metadata"]["annotations"]
        assert installed[SCHEMA_REVISION_ANNOTATION] == str(SCHEMA_REVISION)
        until_of_this_release(server.kubectl)
        assert len(operator_pods(server)) == 1
        assert operator_pods(server) != operators, "the new release's operator replaced the old one's"
        upgraded = job()
        assert uids(server) == owned
        for part in ("metadata", "status"):
            assert job("code-rewards")[part] == other[part], "an upgrade of the CRD writes no job"
        assert status_of_operator(upgraded) == status_of_operator(before)
        assert load(upgraded).spec == load(before).spec, (
            "fields that are new show their defaults, and nothing else changes"
        )
        wait("rounds under the new schema, without an operator", lambda: round_() > reached)
        for name in ("minimal", "code-rewards"):
            stored = job(name)
            load(stored)
            stored["metadata"].pop("resourceVersion")  # the coordinator writes meanwhile
            server.kubectl("-n", JOBS, "replace", "--dry-run=server", "-f", "-", stdin=json.dumps(stored))
            server.kubectl("-n", JOBS, "annotate", "rljob", name, "upgraded=yes")
            assert job(name)["spec"] == stored["spec"], "written again, nothing is dropped"
            assert status_of_operator(job(name)) == status_of_operator(stored)

        with operator_process(server, SYSTEM, tmp_path):
            server.kubectl("-n", JOBS, "scale", "rljob/minimal", "--replicas=2")
            wait("the next operator's machine", lambda: running(2))
            wait("the new member", lambda: members() == pods(server))
            reached = round_()
            wait("rounds with both", lambda: round_() > reached)
    assert coordinators.stall == []
    after = job()
    assert {name: uid for name, uid in uids(server).items() if name in owned} == owned, "same pods, same objects"
    assert set(uids(server)) - set(owned) == {"Pod/minimal-rollout-1-1"}
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == {**upgraded["spec"], "rollout": {**before["spec"]["rollout"], "machines": 2}}
    assert after["status"]["startTime"] == before["status"]["startTime"]
    assert after["status"].get("replacements") == before["status"].get("replacements"), "nothing was lost or replaced"


def status_of_operator(job: dict[str, Any]) -> dict[str, Any]:
    """The status without the part that the coordinator writes."""
    return {name: value for name, value in job["status"].items() if name != "runtime"}


EARLIER: dict[str, dict[str, Any]] = {
    "algorithm": {"gradientClip": 0.5, "importanceCap": 5},
    "data": {"onBadLine": "Skip"},
    "experience": {"capacityPrompts": 500},
    "failurePolicy": {"againWithinSeconds": 30},
}
PRESENT: dict[str, dict[str, Any]] = {
    "algorithm": {"maxGradNorm": 0.5, "truncatedImportanceSampling": {"cap": 5}},
    "data": {"onInvalidRecord": "Skip"},
    "experience": {"maxPrompts": 500},
    "failurePolicy": {"restartWindowSeconds": 30},
}


LOSS = ("kind", "clipLow", "clipHigh", "lossAggregation", "normalizeAdvantagesByStd")
"""Fields of the loss that had defaults in the schema of the earlier release."""
EARLIER_FUNCTION, PRESENT_FUNCTION = (f"rljob_runtime.rewards.{module}:has_number" for module in ("scorers", "builtin"))


def with_fields(more: dict[str, dict[str, Any]], function: str) -> dict[str, Any]:
    """The example, suspended, with these fields and one more reward."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["suspend"] = True
    number = {"name": "number", "kind": "Python", "function": function, "config": {"free": {"form": 1}}}
    document["spec"]["rewards"].append(number)
    for parent, fields in more.items():
        document["spec"][parent] = {**document["spec"].get(parent, {}), **fields}
    return document


@pytest.mark.parametrize("how", [(), *slow(("--server-side",))], ids=["client-side", "server-side"])
def test_chart_upgrade_of_a_suspended_job_to_the_present_field_names(jobs: Tools, how: tuple[str, ...]) -> None:
    """As CHANGELOG.md tells. Until its manifest is edited the job keeps what it had, and is written no other value."""
    server = jobs

    def apply(document: dict[str, Any], check: bool = True) -> str:
        return server.kubectl("-n", JOBS, "apply", *how, "-f", "-", stdin=json.dumps(document), check=check)

    release(server, FIRST_CHART, NO_PODS)
    until_established(server.kubectl)
    apply(with_fields(EARLIER, EARLIER_FUNCTION))
    before = server.json("rljob", "minimal", "-n", JOBS)["spec"]

    release(server, CHART, NO_PODS)
    until_of_this_release(server.kubectl)
    server.kubectl("-n", JOBS, "annotate", "rljob", "minimal", "upgraded=yes")
    stored = server.json("rljob", "minimal", "-n", JOBS)["spec"]
    for parent, fields in EARLIER.items():
        assert stored[parent].items() >= before[parent].items() >= fields.items()
    assert [one.get("function") for one in stored["rewards"]] == [None, EARLIER_FUNCTION]
    said = apply(with_fields({**EARLIER, "algorithm": {"gradientClip": 0.25}}, EARLIER_FUNCTION), check=False)
    assert "gradientClip is renamed: set maxGradNorm instead" in said
    said = apply(with_fields(EARLIER, EARLIER_FUNCTION.replace("has_number", "other")), check=False)
    assert "NAME has moved; write rljob_runtime.rewards.builtin:NAME" in said

    apply(with_fields(PRESENT, PRESENT_FUNCTION))
    edited = server.json("rljob", "minimal", "-n", JOBS)
    present = with_fields(PRESENT, PRESENT_FUNCTION)
    # The earlier server wrote its defaults into the job, so the job keeps its loss: that is now called DAPO.
    kept = {name: before["algorithm"][name] for name in LOSS}
    present["spec"]["algorithm"] = {**kept, **present["spec"]["algorithm"]}
    assert load(edited).spec == load(present).spec
    parts = parts_of(load(edited).spec.algorithm)
    assert parts == parts_of(load(with_fields(PRESENT, PRESENT_FUNCTION)).spec.algorithm)
    assert not [name for parent, fields in EARLIER.items() for name in fields if name in edited["spec"][parent]]
