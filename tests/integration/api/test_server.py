"""RLJobs on a real API server: defaults, server-side apply, the status, `kubectl`."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from rljob_api import RLJobStatus, load
from rljob_api.constants import API_VERSION, COORDINATOR_FIELD_MANAGER, CRD_NAME, KIND, OPERATOR_FIELD_MANAGER
from rljob_api.schema.crd import crd
from rljob_api.spec import RLJob
from rljob_api.status import (
    BackOff,
    CheckpointStatus,
    Condition,
    ConditionStatus,
    LayoutForecast,
    Member,
    RelayTopology,
    Replacements,
    Role,
    RolloutStatus,
    RoundReport,
    RuntimeStatus,
    Target,
)
from tests.support.api.jobs import job
from tests.support.api.kubectl import Kube

pytestmark = pytest.mark.cluster

FORECASTS = (LayoutForecast(tensor_parallel_size=1, seconds=9.5), LayoutForecast(tensor_parallel_size=2, seconds=8))


def of_round(last: RoundReport) -> RLJobStatus:
    return RLJobStatus(runtime=RuntimeStatus(last_round=last))


def test_the_crd_is_accepted_whole(server: Kube) -> None:
    conditions = server.get("crd", CRD_NAME)["status"]["conditions"]
    held = {condition["type"]: condition["status"] for condition in conditions}
    assert held["NamesAccepted"] == held["Established"] == "True"
    assert "NonStructuralSchema" not in held


def test_applying_the_same_manifest_again_changes_nothing(server: Kube) -> None:
    document = job({"metadata.name": "git", "spec.relay": {"chunkBytes": "1Mi"}, "spec.rollout.template.metadata": {}})
    server.apply(document, "git")
    before = server.get("rljob", "git")
    time.sleep(1.1)  # an apply of another second
    server.apply(document, "git")
    assert server.run("diff", "--server-side", "--field-manager=git", "-f", "-", stdin=document).stdout == ""
    assert server.get("rljob", "git") == before
    assert before["metadata"]["generation"] == 1


IN_PART: dict[str, dict[str, Any]] = {
    "prompts": {"spec.data.prompts": {"file": {"path": "/a"}}, "spec.rewards": [{"name": "m", "kind": "Math"}]},
    "code": {"spec.rewards": [{"name": "c", "kind": "Code", "code": {"parallelism": 2}}]},
    "judge": {
        "spec.rewards": [{"name": "j", "kind": "Judge", "judge": {"url": "http://j", "model": "m"}, "timeout": {}}]
    },
    "failures": {"spec.failurePolicy": {"backoff": {"maxSeconds": 100}}, "spec.checkpoint": {"emptyDir": {}}},
    "templates": {"spec.rollout.template": {"spec": {"containers": [{"name": "main", "image": "mine"}]}}},
}


@pytest.mark.parametrize("case", IN_PART)
def test_it_stays_so_where_the_server_fills_in_the_rest_and_others_write(server: Kube, case: str) -> None:
    """The server compares what is applied with what is there before it fills in defaults, and sorts the writers by the
    time of their last change: then it writes even where nothing but that order is new."""
    document = job({"metadata.name": f"part-{case}", **IN_PART[case]})
    server.apply(document, "git")
    time.sleep(1.1)
    apply_status(server, f"part-{case}", from_operator(), OPERATOR_FIELD_MANAGER)
    before = server.get("rljob", f"part-{case}")
    time.sleep(1.1)
    server.apply(document, "git")
    assert server.get("rljob", f"part-{case}") == before


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("rljob", ["One elastic RL post-training run", "spec", "status"]),
        ("rljob.spec", ["Desired state", "rollout", "The rollout machines", "Updates after which the job is complete"]),
        (
            "rljob.spec.rollout",
            ["A machine is one pod", "How rollout pods get accelerators", "-required-"],
        ),
        ("rljob.spec.rollout.machines", ["what `kubectl scale` writes", "<integer>"]),
        ("rljob.spec.algorithm", ["Group relative policy optimisation", "learningRate", "AdamW's step size"]),
        ("rljob.spec.rewards.kind", ["math-verify"]),
        ("rljob.spec.rollout.template.spec", ["A partial PodSpec", "Containers are merged by name", "sidecar"]),
        ("rljob.status.runtime", ["it alone writes", "weightVersion", "The newest version published"]),
    ],
)
def test_explain_reads_well(server: Kube, path: str, words: list[str]) -> None:
    text = " ".join(server.run("explain", path).stdout.split())
    for word in words:
        assert word in text


def test_every_field_is_explained() -> None:
    def undescribed(schema: dict[str, Any], path: str) -> list[str]:
        found = [] if "description" in schema or path == "metadata" else [path]
        for name, child in schema.get("properties", {}).items():
            found += undescribed(child, f"{path}.{name}".lstrip("."))
        if schema.get("items", {}).get("type") == "object":
            found += undescribed(schema["items"], f"{path}[]")
        return found

    assert undescribed(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "") == []


def apply_status(server: Kube, name: str, status: RLJobStatus, manager: str) -> None:
    """Without the client's validation: a part of the status is no whole RLJob."""
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "status": status.to_dict()}
    server.apply(document, manager, "--subresource=status", "--validate=false")


def from_operator(rollout: int = 2) -> RLJobStatus:
    return RLJobStatus(
        observed_generation=1,
        phase="Running",
        conditions=(
            Condition(type="Ready", status=ConditionStatus.TRUE, reason="RoundsProgressing", message="all well"),
        ),
        rollout=RolloutStatus(desired=rollout, ready=rollout, selector="rljob.dev/job=ssa"),
        members=(Member(machine="rollout-0", incarnation=1, pod_uid="u", ip="10.0.0.1", role=Role.ROLLOUT),),
        target=Target(revision=3, machines=("rollout-0",)),
        relay=RelayTopology(epoch=1, master="rollout-0", chain=("rollout-0",)),
        replacements=Replacements(total=1, by_machine={"rollout-0": 1}),
    )


def from_coordinator(round_: int = 4) -> RLJobStatus:
    return RLJobStatus(runtime=RuntimeStatus(term=1, applied=3, event=9, round=round_, stage="Generating", reward=0.25))


def test_two_managers_write_the_status_and_neither_touches_the_other(server: Kube) -> None:
    name = "ssa"
    server.apply(job({"metadata.name": name}), "git")
    apply_status(server, name, from_operator(), OPERATOR_FIELD_MANAGER)
    apply_status(server, name, from_coordinator(), COORDINATOR_FIELD_MANAGER)
    apply_status(server, name, from_operator(rollout=3), OPERATOR_FIELD_MANAGER)
    apply_status(server, name, from_coordinator(round_=5), COORDINATOR_FIELD_MANAGER)
    live = server.get("rljob", name)
    status = load(live).status
    assert status.model_copy(update={"runtime": None}) == from_operator(rollout=3)
    assert status.runtime == from_coordinator(round_=5).runtime
    assert load(live).spec == load(job()).spec
    owned = {
        entry["manager"]: set(entry["fieldsV1"]["f:status"])
        for entry in live["metadata"]["managedFields"]
        if "f:status" in entry["fieldsV1"]
    }
    assert owned[COORDINATOR_FIELD_MANAGER] - {"."} == {"f:runtime"}
    assert "f:runtime" not in owned[OPERATOR_FIELD_MANAGER]


WHOLE_CODE = {"testsField": "tests", "score": "AllTests", "memoryBytes": "1Gi", "parallelism": 4}
BLOCKS: dict[str, dict[str, Any]] = {
    "labels": {"spec.rollout.template": {"metadata": {"labels": {"team": "search"}}}},
    "node-selector": {"spec.trainer.template": {"spec": {"nodeSelector": {"pool": "training"}}}},
    "containers": {"spec.trainer.template": {"spec": {"containers": [{"name": "main", "image": "mine"}]}}},
    "coordinator": {"spec.coordinator": {"template": {"spec": {"nodeSelector": {"pool": "cpu"}}}}},
    "tail-batching": {"spec.tailBatching": {"enabled": True}},
    "backoff": {"spec.failurePolicy": {"backoff": {"maxSeconds": 100}}},
    "sizes": {"spec.rollout.allowedTensorParallelSizes": [1]},
    "code": {"spec.rewards": [{"name": "right", "kind": "Code", "code": {"parallelism": 2}}]},
    "all of code": {"spec.rewards": [{"name": "right", "kind": "Code", "code": WHOLE_CODE}]},
    "config": {"spec.rewards": [{"name": "right", "kind": "ReasoningGym", "config": {"extract": "LastNumber"}}]},
}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_that_was_applied_may_be_left_out_again(server: Kube, block: str) -> None:
    """Flux and Argo CD apply so. What is left is what would be there if it had never been."""
    for name, blocks in (("left-out", [BLOCKS[block], {}]), ("never-there", [{}])):
        for changes in blocks:
            edits = {"metadata.name": f"{block}-{name}".replace(" ", "-"), "spec.suspend": True, **changes}
            server.apply(job(edits), "git")
    left_out, never_there = (
        server.get("rljob", f"{block}-{name}".replace(" ", "-")) for name in ("left-out", "never-there")
    )
    assert left_out["spec"] == never_there["spec"]


EMPTIED: dict[str, dict[str, Any]] = {
    "no-labels": {"metadata": {"labels": {}}},
    "no-metadata": {"metadata": {}},
    "no-spec": {"spec": {}},
    "nothing": {},
}


def test_an_object_with_defaults_inside_may_become_an_empty_one(server: Kube) -> None:
    for code in ({"parallelism": 2}, {}):
        reward = {"name": "right", "kind": "Code", "code": code}
        server.apply(job({"metadata.name": "code-emptied", "spec.suspend": True, "spec.rewards": [reward]}), "git")
    assert server.get("rljob", "code-emptied")["spec"]["rewards"][0]["code"]["parallelism"] == 4


@pytest.mark.parametrize("name", EMPTIED)
def test_a_block_that_was_applied_may_become_an_empty_one(server: Kube, name: str) -> None:
    whole = {"metadata": {"labels": {"team": "search"}}, "spec": {"nodeSelector": {"pool": "training"}}}
    for template in (whole, EMPTIED[name]):
        server.apply(job({"metadata.name": name, "spec.rollout.template": template}), "git")
    assert server.get("rljob", name)["spec"]["rollout"].get("template") == EMPTIED[name]


STATUSES: dict[str, tuple[str, RLJobStatus, RLJobStatus]] = {
    "forecasts": (
        COORDINATOR_FIELD_MANAGER,
        of_round(RoundReport(round=3, layout_forecasts=FORECASTS)),
        of_round(RoundReport(round=4)),
    ),
    "checkpoint": (
        COORDINATOR_FIELD_MANAGER,
        RLJobStatus(runtime=RuntimeStatus(round=3, checkpoint=CheckpointStatus(round=3, name="round-3"))),
        RLJobStatus(runtime=RuntimeStatus(round=3)),
    ),
    "budgets": (
        OPERATOR_FIELD_MANAGER,
        RLJobStatus(replacements=Replacements(total=1, by_machine={"rollout-0": 1})),
        RLJobStatus(replacements=Replacements(total=2)),
    ),
    "memory": (
        OPERATOR_FIELD_MANAGER,
        RLJobStatus(replacements=Replacements(total=1, backoff={"rollout-0": BackOff(failures=1)})),
        RLJobStatus(replacements=Replacements(total=1)),
    ),
    "all replacements": (
        OPERATOR_FIELD_MANAGER,
        RLJobStatus(replacements=Replacements(by_machine={"rollout-0": 1})),
        RLJobStatus(),
    ),
    "incarnations": (OPERATOR_FIELD_MANAGER, RLJobStatus(incarnations={"rollout-0": 2}), RLJobStatus()),
    "chain": (OPERATOR_FIELD_MANAGER, RLJobStatus(relay=RelayTopology(epoch=2, chain=("rollout-0",))), RLJobStatus()),
}


@pytest.mark.parametrize("case", STATUSES)
def test_what_a_status_had_it_may_lose(server: Kube, case: str) -> None:
    """And no other part of it with it."""
    manager, had, has = STATUSES[case]
    name = f"loses-{case.replace(' ', '-')}"
    server.apply(job({"metadata.name": name}), "git")
    ready = (Condition(type="Ready", status=ConditionStatus.TRUE),)
    for status in (each.model_copy(update={"conditions": ready}) for each in (had, has)):
        apply_status(server, name, status, manager)
        assert load(server.get("rljob", name)).status == status


def test_conditions_of_several_managers_merge_by_type(server: Kube) -> None:
    name = "conditions"
    server.apply(job({"metadata.name": name}), "git")
    for manager, kind in (("one", "Ready"), ("two", "Other")):
        condition = Condition(type=kind, status=ConditionStatus.TRUE)
        apply_status(server, name, RLJobStatus(conditions=(condition,)), manager)
    assert {condition.type for condition in load(server.get("rljob", name)).status.conditions} == {"Ready", "Other"}


def test_scale_reads_and_writes_machines(server: Kube) -> None:
    name = "scaled"
    server.apply(job({"metadata.name": name}), "git")
    apply_status(server, name, from_operator(), OPERATOR_FIELD_MANAGER)
    server.run("scale", "rljob", name, "--replicas=5")
    assert load(server.get("rljob", name)).spec.rollout.machines == 5
    scale = json.loads(server.run("get", "--raw", f"{server.path}/{name}/scale").stdout)
    assert scale["spec"]["replicas"] == 5
    assert (scale["status"]["replicas"], scale["status"]["selector"]) == (2, "rljob.dev/job=ssa")


def test_columns(server: Kube) -> None:
    name = "columns"
    server.apply(job({"metadata.name": name}), "git")
    apply_status(server, name, from_operator(), OPERATOR_FIELD_MANAGER)
    apply_status(server, name, from_coordinator(), COORDINATOR_FIELD_MANAGER)
    header, row = server.run("get", "rlj", name).stdout.splitlines()
    columns = ["NAME", "STATE", "REASON", "ROUND", "READY", "DESIRED", "TP", "REWARD", "REPLACED", "AGE"]
    assert header.split() == columns
    assert row.split()[:6] == [name, "Running", "RoundsProgressing", "4", "2", "2"]
    header, row = server.run("get", "rlj", name, "-o", "wide").stdout.splitlines()
    assert {"RELAY-EPOCH", "WEIGHTS", "ROUNDS"} <= set(header.split())
    assert name in server.run("get", "all").stdout


def test_jobs_read_back_as_the_models_wrote_them(server: Kube) -> None:
    written = load(job({"metadata.name": "whole", "spec.rollout.maxMachines": 4}))
    server.apply(written.manifest(), "git")
    read = load(server.get("rljob", "whole"))
    assert isinstance(read, RLJob)
    assert read.spec == written.spec
    assert read.metadata.uid
    assert read.metadata.generation == 1
