"""Models: what is written reads back equal, and what they say about a job."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rljob_api import RLJob, RLJobSpec, RLJobStatus, constants, load
from rljob_api.fields import format_bytes
from rljob_api.schema.crd import crd
from rljob_api.spec import Metadata
from rljob_api.spec.resources import Relay
from rljob_api.status import Condition, ConditionStatus, Member, Role, RuntimeStatus
from tests.support.api.invalid_specs import CALC
from tests.support.api.jobs import job
from tests.support.examples import examples

TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda time: time.strftime("%Y-%m-%dT%H:%M:%SZ"))
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20)
STATUS = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]


def fitting(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Anything that a structural schema accepts: small, and with no empty texts, which are never written."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "object" if "properties" in schema:
            required = set(schema.get("required", []))
            fields = {name: fitting(child) for name, child in schema["properties"].items()}
            return st.fixed_dictionaries(
                {name: field for name, field in fields.items() if name in required},
                optional={name: field for name, field in fields.items() if name not in required},
            )
        case "object":
            return st.dictionaries(TEXT, fitting(schema["additionalProperties"]), max_size=2)
        case "array":
            return st.lists(fitting(schema["items"]), max_size=2)
        case "integer":
            return st.integers(schema.get("minimum", -9), schema.get("maximum", 2**40))
        case "number":
            return st.floats(schema.get("minimum", -1e9), schema.get("maximum", 1e9))
        case "boolean":
            return st.booleans()
        case "string" if schema.get("format") == "date-time":
            return TIMES
    return TEXT.map(lambda text: text[: schema.get("maxLength")]).filter(bool)


def _holds_empty(value: Any) -> bool:
    """An empty text, list or object, at any depth."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return not value or any(_holds_empty(item) for item in inner)
    return value == ""


@settings(max_examples=examples(60))
@given(fitting(STATUS))
def test_a_status_that_fits_the_schema_is_read_and_reads_back_equal(status: dict[str, Any]) -> None:
    first = load({**job(), "status": status}).status
    again = load(json.dumps({**job(), "status": first.to_dict()})).status
    assert again.to_dict() == first.to_dict()
    assert not any(map(_holds_empty, again.to_dict().values()))
    if "runtime" in status:
        assert again.runtime is not None
        assert {name for name, value in status["runtime"].items() if value != []} <= again.runtime.to_dict().keys()


@settings(max_examples=examples(60))
@given(
    st.fixed_dictionaries(
        {
            "spec.rounds": st.integers(1, 1_000_000),
            "spec.suspend": st.booleans(),
            "spec.rollout.machines": st.integers(1, 64),
            "spec.rollout.maxMachines": st.integers(64, 1024),
            "spec.algorithm.learningRate": st.floats(1e-12, 1, allow_subnormal=False),
            "spec.algorithm.klCoefficient": st.floats(0, 100),
            "spec.data.seed": st.integers(0, 2**31 - 1),
            "spec.data.systemPrompt": TEXT,
            "spec.relay.chunkBytes": st.integers(1 << 16, 1 << 30).map(format_bytes),
            "spec.data.prompts.reasoningGym.config": st.dictionaries(
                TEXT, st.integers() | TEXT | st.lists(TEXT, max_size=3)
            ),
            "spec.rollout.template.metadata.labels": st.dictionaries(st.from_regex(r"\A[a-z]{1,10}\Z"), st.just("x")),
            "spec.runPolicy.ttlSecondsAfterFinished": st.integers(0, 1000),
        }
    )
)
def test_a_job_reads_back_equal(edits: dict[str, Any]) -> None:
    first = load(job(edits))
    assert load(json.dumps(first.manifest())) == first
    assert first.manifest() == load(first.manifest()).manifest()


def test_models_are_frozen_strict_and_made_by_either_name() -> None:
    runtime = RuntimeStatus(round=1, weightVersion=2)
    assert runtime.weight_version == 2
    with pytest.raises(ValidationError):
        runtime.round = 2  # type: ignore[misc]
    with pytest.raises(ValidationError):
        RuntimeStatus(weigth_version=2)
    assert Member(machine="rollout-0", incarnation=1, role="Rollout").role is Role.ROLLOUT


def test_a_status_holds_nothing_empty() -> None:
    """An empty list applied by one writer would take the field from the other."""
    status = RLJobStatus(conditions=(Condition(type="Ready", status="True"),), runtime=RuntimeStatus())
    assert status.to_dict() == {
        "conditions": [{"type": "Ready", "status": "True"}],
        "runtime": {"term": 0, "event": 0, "round": 0},
    }


def test_fields_of_a_newer_status_are_ignored() -> None:
    document = {**job(), "status": {"newer": {"a": 1}, "runtime": {"round": 3, "newer": [1]}, "members": [
        {"machine": "rollout-0", "incarnation": 1, "role": "Rollout", "newer": True},
    ]}}  # fmt: skip
    status = load(document).status
    assert status.runtime is not None
    assert status.runtime.round == 3
    assert status.members[0].machine == "rollout-0"


def test_times_are_utc_seconds() -> None:
    east = datetime(2026, 1, 1, 12, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
    status = RLJobStatus(start_time=east)
    assert status.start_time == datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert status.to_dict() == {"startTime": "2026-01-01T10:00:00Z"}
    with pytest.raises(ValidationError, match="time zone"):
        RLJobStatus(start_time=datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("32Mi", 32 << 20, "32Mi"),
        ("0.5Gi", 1 << 29, "512Mi"),
        ("65536", 1 << 16, "64Ki"),
        ("100k", 100_000, "100000"),
        ("0.5G", 500_000_000, "500000000"),
    ],
)
def test_bytes(text: str, value: int, written: str) -> None:
    relay = load(job({"spec.relay.chunkBytes": text})).spec.relay
    assert relay.chunk_bytes == value
    assert relay.to_dict()["chunkBytes"] == written
    assert Relay(chunk_bytes=value) == relay


@pytest.mark.parametrize("text", ["2e-5", "2.0e-5", "0.00002", "2E-05", "+2e-5"])
def test_numbers_as_kubectl_reads_them(text: str) -> None:
    manifest = yaml.safe_dump(job()).replace("  rounds: 24", f"  rounds: 24\n  algorithm: {{learningRate: {text}}}")
    assert load(manifest).spec.algorithm.learning_rate == 2e-5


def test_what_a_spec_answers() -> None:
    spec = load(job({"spec.rollout.acceleratorsPerMachine": 8})).spec
    assert (spec.rollout.smallest, spec.rollout.largest) == (2, 2)
    assert spec.rollout.slots == 8
    assert spec.trainer.ranks == 1
    assert not spec.checkpoint.survives_pods
    assert spec.claims() == ()
    edits = {
        "spec.model.source": "pvc://models/qwen",
        "spec.data.prompts": {"file": {"path": "pvc://data/a.jsonl"}},
        "spec.data.chatTemplateFile": "pvc://chat/own.jinja",
        "spec.rewards": [{"name": "m", "kind": "Math"}],
        "spec.rollout.minMachines": 1,
        "spec.rollout.maxMachines": 5,
        "spec.trainer": {"replicas": 2, "acceleratorsPerReplica": 8},
        "spec.checkpoint.volumeClaimName": "state",
        "spec.rollout.template.spec.containers": [{"name": "main", "image": "r:1"}, {"name": "log", "image": "l:1"}],
    }
    spec = load(job(edits)).spec
    assert spec.claims() == ("chat", "data", "models")
    assert (spec.rollout.smallest, spec.rollout.largest) == (1, 5)
    assert spec.rollout.slots == 1
    assert spec.trainer.ranks == 16
    assert spec.checkpoint.survives_pods
    assert spec.rollout.template.container()["image"] == "r:1"
    assert [container["name"] for container in spec.rollout.template.sidecars()] == ["log"]
    assert spec.trainer.template.container() == {}
    sizes = {"spec.rollout.slotsPerMachine": 2, "spec.rollout.allowedTensorParallelSizes": [1, 2]}
    switching = {**sizes, "spec.adaptiveTensorParallel.enabled": "Auto"}
    assert load(job(switching)).spec.switch_sizes == (1, 2)
    assert load(job({**switching, "spec.environments": [CALC]})).spec.switch_sizes == (1, 2)
    solved = {"spec.environments": [{**CALC, "reward": "m:f"}], "spec.rewards[1]": {"name": "s", "kind": "Environment"}}
    assert load(job(solved)).spec.adds_environment_rewards
    assert not spec.adds_environment_rewards


def test_a_runner_is_told_about_its_environment_and_not_about_its_pods() -> None:
    template = {"spec": {"containers": [{"name": "main", "env": [{"name": "TOKEN", "value": "secret"}]}]}}
    egress = {"cidrs": [{"cidr": "10.0.0.0/8"}]}
    (environment,) = load(
        job({"spec.environments": [{**CALC, "template": template, "egress": egress, "maxRunners": 4, "minRunners": 1}]})
    ).spec.environments
    assert environment.template.container()["env"]
    assert environment.runner_options() == {
        **CALC,
        "maxTurns": 16,
        "timeoutSeconds": 300.0,
        "rewardSeconds": 20.0,
        "runners": 1,
        "episodesPerRunner": 8,
    }


@pytest.mark.parametrize(
    ("changes", "mixes"),
    [
        ({}, False),
        ({"spec.environments": [CALC]}, False),
        ({"spec.mode": "Asynchronous"}, False),
        ({"spec.mode": "Asynchronous", "spec.environments": [CALC]}, True),
        ({"spec.mode": "Asynchronous", "spec.environments": [CALC], "spec.episode": {"maxTurns": 2}}, True),
        ({"spec.mode": "Asynchronous", "spec.environments": [CALC], "spec.episode": {"versions": "Single"}}, False),
    ],
)
def test_episodes_of_asynchronous_jobs_mix_versions_unless_told(changes: dict[str, Any], mixes: bool) -> None:
    assert load(job(changes)).spec.mixes_versions is mixes


def test_what_a_status_answers() -> None:
    status = RLJobStatus(conditions=(Condition(type="Failed", status=ConditionStatus.TRUE, reason="X"),))
    assert status.is_true("Failed")
    assert not status.is_true("Complete")
    assert status.condition("Ready") is None
    assert status.ended
    assert not RLJobStatus().ended


def test_a_job_made_in_python_is_a_job() -> None:
    spec = RLJobSpec.model_validate(job()["spec"])
    made = RLJob(metadata=Metadata(name="demo"), spec=spec)
    assert load(made.manifest()).spec == spec
    assert (made.name, made.namespace) == ("demo", "default")


def test_names_fit() -> None:
    longest = "a" * constants.MAX_JOB_NAME_LENGTH
    for machine in ("coordinator-0", "trainer-255", "rollout-1023"):
        assert len(constants.pod_name(longest, machine, 99_999)) <= 63
    assert len(constants.coordinator_service(longest)) <= 63
    assert len(constants.environment_deployment(longest, "e" * 63)) <= 253
    assert constants.environment_deployment("demo", "calc") == "demo-environment-calc"
    assert constants.environments_secret_of("demo", "0123456789") == "demo-environments-01234567"
    assert len(constants.runner_key_item("e" * 63)) <= 253


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("pvc://claim/sub/dir", ("claim", "/mnt/rljob/claim/sub/dir")),
        ("pvc://claim", ("claim", "/mnt/rljob/claim")),
        ("pvc://claim/", ("claim", "/mnt/rljob/claim")),
        ("/data", None),
        ("hf://a/b", None),
    ],
)
def test_claim_paths(source: str, found: tuple[str, str] | None) -> None:
    assert constants.claim_path(source) == found
