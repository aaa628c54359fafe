"""The accepted spec: what is remembered, for whom, and how a change of it is judged and told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import InvalidSpec, constants, load
from rljob_api.admission.immutability import validate_update
from rljob_api.admission.last_accepted import accept, accepted_job, running_job, was_accepted
from tests.support.api.jobs import REMOVE, job

UID = "3c1f0b5e"


def accepted(edits: dict[str, Any], later: dict[str, Any], uid: str = UID) -> dict[str, Any]:
    """The object that was accepted with `edits`, as it is after the `later` ones."""
    first = job({**edits, "metadata.uid": uid})
    return {**job({**edits, **later, "metadata.uid": UID}), "status": {"accepted": accept(load(first)).to_dict()}}


@settings(max_examples=40)
@given(
    st.fixed_dictionaries(
        {
            "spec.rounds": st.integers(1, 1_000_000),
            "spec.suspend": st.booleans(),
            "spec.algorithm.learningRate": st.floats(1e-12, 1, allow_subnormal=False),
            "spec.rollout.engineOptions.kvCacheBytes": st.sampled_from(["512Mi", "0.5Gi", "536870912"]),
            "spec.data.prompts.reasoningGym.config": st.dictionaries(st.text(max_size=5), st.integers()),
            "spec.rollout.template.spec.nodeSelector": st.dictionaries(st.sampled_from("abc"), st.text(max_size=5)),
        }
    )
)
def test_the_memory_reads_back_as_the_spec(edits: dict[str, Any]) -> None:
    document = accepted(edits, {"spec.rounds": 7, "spec.data.seed": 99})
    found = accepted_job(document)
    assert found is not None
    assert found.spec == load(job(edits)).spec
    assert found.metadata == load(document).metadata
    validate_update(found, load(job(edits)))


def test_equal_specs_have_equal_texts() -> None:
    one = load(job({"spec.data.prompts.reasoningGym.config": {"a": 1, "b": 2}, "spec.algorithm.learningRate": 1e-6}))
    other = load(job({"spec.data.prompts.reasoningGym.config": {"b": 2, "a": 1}}))
    assert accept(one) == accept(other)


@pytest.mark.parametrize(
    "document",
    [
        job({"metadata.uid": UID}),
        {**job({"metadata.uid": UID}), "status": None},
        accepted({}, {}, uid="of another cluster's job"),
        {**job({"metadata.uid": UID}), "status": {"accepted": {"uid": UID}}},
    ],
)
def test_what_was_never_accepted(document: dict[str, Any]) -> None:
    assert not was_accepted(document)
    assert accepted_job(document) is None


@pytest.mark.parametrize("spec", ["{", "[]", "7", '{"rounds": 0}', '{"of": "another version"}'])
def test_a_memory_that_this_version_cannot_read_counts_as_none(spec: str) -> None:
    document = {**job({"metadata.uid": UID}), "status": {"accepted": {"uid": UID, "spec": spec}}}
    assert accepted_job(document) is None
    assert was_accepted(document)


LATER = {
    "later": 1,
    "relay.later": {"a": []},
    "rollout.later": [1, 2],
    "data.prompts.reasoningGym.later": None,
    "adaptiveTensorParallel": {"enabled": False, "later": "Auto"},
}
"""Fields that a later version may have added, with its defaults."""


@pytest.mark.parametrize("was", [True, False], ids=["accepted", "present"])
def test_a_running_coordinator_leaves_out_what_a_later_version_added(was: bool) -> None:
    """The API server adds defaults to every stored job as soon as it has the later CRD."""
    document = job({"metadata.uid": UID, **{f"spec.{path}": value for path, value in LATER.items()}})
    evaluation = {"name": "e", "prompts": job({})["spec"]["data"]["prompts"]}
    document["spec"]["evaluation"] = [{**evaluation, "later": 7}]
    document["spec"]["rewards"][0]["later"] = {}
    if was:
        spec = json.dumps(document["spec"])
        document["status"] = {"accepted": {"uid": UID, "spec": spec}}
        document["spec"]["rounds"] += 1  # an edit that was not accepted yet
        assert accepted_job(document) is None
    with pytest.raises(InvalidSpec):
        load(document)
    assert running_job(document).spec == load(job({"spec.evaluation": [evaluation]})).spec


def test_a_running_coordinator_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.mode"):
        running_job(job({"spec.mode": "Later"}))


FILE = {"file": {"path": "/prompts.jsonl"}}
NAMES = [{"name": "m", "kind": "Math"}, {"name": "n", "kind": "Math"}]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            {"spec.model.source": "/a"},
            {"spec.model.source": "/b"},
            ["spec.model.source: '/b' is immutable, it was '/a'; set it back, or make a new RLJob"],
        ),
        (
            {"spec.managedBy": "rljob.dev/operator"},
            {"spec.managedBy": "a.b/c"},
            ["spec.managedBy: 'a.b/c' is immutable, it was 'rljob.dev/operator'; set it back, or make a new RLJob"],
        ),
        (
            {},
            {"spec.checkpoint.emptyDir": {}},
            ["spec.checkpoint.emptyDir: {} is immutable, it was (absent); set it back, or make a new RLJob"],
        ),
        (
            {"spec.checkpoint.volumeClaimName": "c"},
            {"spec.checkpoint.volumeClaimName": REMOVE},
            ["spec.checkpoint.volumeClaimName: (absent) is immutable, it was 'c'; set it back, or make a new RLJob"],
        ),
        (
            {},
            {"spec.algorithm.learningRate": 2e-5, "spec.algorithm.minibatches": 2},
            [
                "spec.algorithm.learningRate: 2e-05 can change only while the job is suspended, it was 1e-06; set it "
                "back, or set spec.suspend: true",
                "spec.algorithm.minibatches: 2 can change only while the job is suspended, it was 1; set it back, or "
                "set spec.suspend: true",
            ],
        ),
        (
            {"spec.data.prompts": FILE, "spec.rewards": NAMES},
            {"spec.rewards": [NAMES[0], {**NAMES[1], "weight": 2}]},
            [
                "spec.rewards[1].weight: 2.0 can change only while the job is suspended, it was 1.0; set it back, or "
                "set spec.suspend: true"
            ],
        ),
    ],
)  # fmt: skip
def test_a_refused_change_names_the_innermost_field_and_both_values(
    before: dict[str, Any], after: dict[str, Any], told: list[str]
) -> None:
    later = {path: value for path, value in {**before, **after}.items() if value is not REMOVE}
    with pytest.raises(InvalidSpec) as caught:
        validate_update(load(job(before)), load(job(later)))
    assert [str(error) for error in caught.value.errors] == told


def test_a_spec_that_no_status_could_remember_is_refused() -> None:
    note = {f"spec.rollout.template.metadata.annotations.n{i}": "x" * 4096 for i in range(63)}
    load(job({**note, "spec.data.systemPrompt": "x"}))
    with pytest.raises(InvalidSpec, match=f"at most {constants.MAX_SPEC_LENGTH} characters"):
        load(job({**note, "spec.data.systemPrompt": "x" * 8192}))
