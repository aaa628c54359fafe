"""Every example: valid by the models, accepted by a real API server, and stable when a GitOps tool applies it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api import load
from rljob_api.constants import API_VERSION, COORDINATOR_FIELD_MANAGER, KIND, OPERATOR_FIELD_MANAGER
from tests.support.charts.tools import CHART, EXAMPLES, Tools
from tests.support.crd import until_established
from tests.support.paths import ROOT

every_example = pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def job_of(path: Path) -> dict[str, Any]:
    (job,) = [document for document in documents(path) if document["kind"] == "RLJob"]
    return job


def test_chart_examples_are_all_here() -> None:
    assert {path.stem for path in EXAMPLES} >= {"minimal", "addition-smollm2", "qwen-7b-gpu"}


@every_example
def test_chart_example_is_valid_and_named_after_its_file(example: Path) -> None:
    job = load(job_of(example))
    assert job.name == example.stem
    claims = {d["metadata"]["name"] for d in documents(example) if d["kind"] == "PersistentVolumeClaim"}
    wanted = {claim for claim in (job.spec.checkpoint.volume_claim_name, *job.spec.claims()) if claim is not None}
    assert wanted == claims, "every claim that the job names stands in the file, and no other"


@every_example
def test_chart_example_states_its_resources(example: Path) -> None:
    """Users copy examples: each container asks for CPU and memory and bounds its memory."""
    spec = load(job_of(example)).spec
    roles = {"trainer": spec.trainer.template.container(), "rollout": spec.rollout.template.container()}
    if spec.trainer.accelerators_per_replica == 0:
        roles["coordinator"] = spec.coordinator.template.container()
    if spec.rewards_apart:
        roles["rewards"] = spec.coordinator.template.container("rewards")
    for role, container in roles.items():
        resources = container.get("resources", {})
        assert {"cpu", "memory"} <= set(resources.get("requests", {})), role
        assert "memory" in resources.get("limits", {}), role


@pytest.fixture(scope="module")
def with_crd(server: Tools) -> Iterator[Tools]:
    """The server with the chart's CRD, as Helm renders it for this version, and nothing else of the chart."""
    values = (
        "--set=rbac.create=false,userRoles.create=false,replicas=0",
        "--namespace",
        "crd-only",
        "--create-namespace",
    )
    server.helm("install", "rljob", str(CHART), *values)
    until_established(server.kubectl)
    yield server
    server.helm("uninstall", "rljob", "--namespace", "crd-only")
    server.kubectl("delete", "rljobs", "--all", "--all-namespaces")
    server.remove_crd()


STATUSES = {
    OPERATOR_FIELD_MANAGER: {"phase": "Running", "rollout": {"desired": 1, "ready": 1, "selector": "rljob.dev/job"}},
    COORDINATOR_FIELD_MANAGER: {"runtime": {"term": 1, "event": 4, "round": 2, "reward": 0.5}},
}


@pytest.mark.cluster
@every_example
@pytest.mark.parametrize("flavour", ["client", "server"])
def test_chart_example_is_stable(with_crd: Tools, example: Path, flavour: str) -> None:
    """Applied again while the job runs, in either way, an example changes nothing at all, and `kubectl diff` is empty.
    Each writer owns its own part: who applies the spec, the operator the status, the coordinator its runtime."""
    how = ["--server-side"] if flavour == "server" else []

    def live() -> dict[str, Any]:
        return with_crd.json("rljob", example.stem)

    with_crd.kubectl("apply", *how, "-f", str(example))
    try:
        for manager, status in STATUSES.items():
            body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": example.stem}, "status": status}
            report = ("--server-side", f"--field-manager={manager}", "--subresource=status", "--validate=false")
            with_crd.kubectl("apply", *report, "-f", "-", stdin=json.dumps(body))
        before = live()
        difference = with_crd.run("kubectl", "diff", *how, "-f", str(example), check=False)
        assert (difference.returncode, difference.stdout) == (0, ""), difference.stdout + difference.stderr
        with_crd.kubectl("apply", *how, "-f", str(example))
        assert live() == before, "not even the resource version"
        assert before["metadata"]["generation"] == 1
        parts = {one["manager"]: _owned(one["fieldsV1"]) for one in before["metadata"]["managedFields"]}
        applier = "kubectl" if flavour == "server" else "kubectl-client-side-apply"
        assert set(parts) == {applier, *STATUSES}
        assert "spec" in parts[applier]
        assert "status" not in parts[applier]
        assert parts[OPERATOR_FIELD_MANAGER] == {"status", "status.phase", "status.rollout"}
        assert parts[COORDINATOR_FIELD_MANAGER] == {"status", "status.runtime"}
    finally:
        with_crd.kubectl("delete", "rljob", example.stem)
        for claim in [d["metadata"]["name"] for d in documents(example) if d["kind"] == "PersistentVolumeClaim"]:
            with_crd.kubectl("delete", "pvc", claim)


def _owned(fields: dict[str, Any]) -> set[str]:
    """The parts of an object that these managed fields are in, to two steps."""
    parts = {part.removeprefix("f:"): inner for part, inner in fields.items()}
    status = {f"status.{name.removeprefix('f:')}" for name in parts.get("status", {}) if name != "."}
    return set(parts) | status


@pytest.mark.cluster
def test_chart_scaling_and_gitops_get_along(with_crd: Tools) -> None:
    """What docs/guides/gitops.md says: `kubectl scale` shows as a difference of one field, and of that field alone."""
    example = ROOT / "examples/minimal.yaml"
    with_crd.kubectl("apply", "-f", str(example))
    try:
        with_crd.kubectl("scale", "rljob/minimal", "--replicas=3")
        difference = with_crd.run("kubectl", "diff", "-f", str(example), check=False)
        assert difference.returncode == 1
        lines = difference.stdout.splitlines()
        changed = [line[1:].strip() for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        assert {line for line in changed if not line.startswith("generation:")} == {"machines: 3", "machines: 1"}
    finally:
        with_crd.kubectl("delete", "rljob", "minimal")
