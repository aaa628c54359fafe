"""From the first release to this one by real Helm under a running job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api import load
from rljob_api.constants import COORDINATOR_FIELD_MANAGER, SCHEMA_REVISION, SCHEMA_REVISION_ANNOTATION
from rljob_runtime.training.presets import parts_of
from tests.support.charts.operator_process import operator_process, wait
from tests.support.charts.releases import JOBS, SYSTEM, release
from tests.support.charts.tools import CHART, Tools
from tests.support.crd import FIRST_CHART, until_established, until_of_this_release
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


def pods(server: Tools) -> dict[str, dict[str, Any]]:
    items = json.loads(server.kubectl("-n", JOBS, "get", "pods", "-o", "json"))["items"]
    return {item["metadata"]["name"]: item for item in items if "deletionTimestamp" not in item["metadata"]}


def start_pods(server: Tools) -> None:
    """The kubelets' part: every pod runs and is ready."""
    for number, name in enumerate(pods(server), 1):
        ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
        status = {"phase": "Running", "podIP": f"10.9.0.{number}", "conditions": ready}
        patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        server.kubectl("-n", JOBS, "patch", "pod", name, *patch)


def report(server: Tools, round_: int) -> None:
    """The coordinator's part."""
    head = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "minimal"}}
    body = {**head, "status": {"runtime": {"term": 1, "event": round_, "round": round_, "stage": "Generating"}}}
    how = ("--server-side", f"--field-manager={COORDINATOR_FIELD_MANAGER}", "--subresource=status", "--validate=false")
    server.kubectl("-n", JOBS, "apply", *how, "-f", "-", stdin=json.dumps(body))


def test_chart_upgrade_under_a_running_job(jobs: Tools, tmp_path: Path) -> None:
    """The chart of the old release, then the new one. The job keeps its pods, objects, spec and status. What is stored
    is valid under the new schema. The operator goes on with it.

    The operator is this checkout's under both charts. Objects that the old one made: `test_first_release.py`."""
    server = jobs

    def job() -> dict[str, Any]:
        return server.json("rljob", "minimal", "-n", JOBS)

    def members() -> set[str]:
        found = (job().get("status") or {}).get("members") or []
        return {f"minimal-{one['machine']}-{one['incarnation']}" for one in found}

    release(server, FIRST_CHART, NO_PODS)
    until_established(server.kubectl)
    for example in (EXAMPLE, ROOT / "examples/code-rewards.yaml"):
        document = yaml.safe_load(example.read_text())
        document["spec"]["suspend"] = example is not EXAMPLE
        document["spec"].pop("samples", None)  # unknown to the earlier release
        server.kubectl("-n", JOBS, "apply", "--server-side", "-f", "-", stdin=json.dumps(document))
    with operator_process(server, SYSTEM, tmp_path):
        wait("pods of every role", lambda: len(pods(server)) == 3)
        start_pods(server)
        report(server, 4)
        wait("members", lambda: members() == set(pods(server)))
        wait("a ready rollout machine", lambda: job()["status"]["rollout"].get("ready") == 1)
    before, owned = job(), uids(server)
    assert len(owned) >= 11, owned

    release(server, CHART, NO_PODS)
    installed = server.json("crd", "rljobs.rljob.dev")["metadata"]["annotations"]
    assert installed[SCHEMA_REVISION_ANNOTATION] == str(SCHEMA_REVISION)
    until_of_this_release(server.kubectl)
    upgraded = job()
    for part in ("metadata", "status"):
        assert upgraded[part] == before[part], "an upgrade of the CRD writes no job"
    assert load(upgraded).spec == load(before).spec, "fields that are new show their defaults, and nothing else changes"
    for name in ("minimal", "code-rewards"):
        stored = server.json("rljob", name, "-n", JOBS)
        load(stored)
        server.kubectl("-n", JOBS, "replace", "--dry-run=server", "-f", "-", stdin=json.dumps(stored))
        server.kubectl("-n", JOBS, "annotate", "rljob", name, "upgraded=yes")
        assert server.json("rljob", name, "-n", JOBS)["spec"] == stored["spec"], "written again, nothing is dropped"
        assert server.json("rljob", name, "-n", JOBS)["status"] == stored["status"]

    with operator_process(server, SYSTEM, tmp_path):
        server.kubectl("-n", JOBS, "scale", "rljob/minimal", "--replicas=2")
        wait("the next operator's machine", lambda: "minimal-rollout-1-1" in pods(server))
        report(server, 5)
        wait("the new member", lambda: "minimal-rollout-1-1" in members())
    after = job()
    assert {name: uid for name, uid in uids(server).items() if name in owned} == owned, "same pods, same objects"
    assert set(uids(server)) - set(owned) == {"Pod/minimal-rollout-1-1"}
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == {**upgraded["spec"], "rollout": {**before["spec"]["rollout"], "machines": 2}}
    assert after["status"]["runtime"]["round"] == 5
    assert after["status"]["startTime"] == before["status"]["startTime"]
    assert after["status"].get("replacements") == before["status"].get("replacements"), "nothing was lost or replaced"


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
