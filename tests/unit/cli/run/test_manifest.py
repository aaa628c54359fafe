"""A manifest on this machine: assigned values, paths from its folder, folders in place of claims."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import InvalidSpec
from rljob_runtime.cli.run.manifest import assign, localised, parse_claims

Json = dict[str, Any]


def document(**sources: str) -> Json:
    spec: Json = {"rounds": 8, "rewards": [{"weight": 1.0}], "model": {"source": sources.get("model", "hf://a/b")}}
    if "file" in sources:
        spec["data"] = {"prompts": {"file": {"path": sources["file"]}}}
    return {"kind": "RLJob", "metadata": {"name": "a"}, "spec": spec}


@pytest.mark.parametrize(
    ("assignment", "where", "value"),
    [
        ("spec.rounds=3", ("rounds",), 3),
        ("spec.rewards[0].weight=0.5", ("rewards", 0, "weight"), 0.5),
        ("spec.trainer.replicas=2", ("trainer", "replicas"), 2),
        ("spec.trainer.name=", ("trainer", "name"), None),
        ("spec.model={source: a=b}", ("model",), {"source": "a=b"}),
        ("spec.data.systemPrompt=a: b", ("data", "systemPrompt"), None),
    ],
)
def test_an_assignment_sets_one_value_in_yaml(assignment, where, value):
    changed = document()
    error = assign(changed, assignment)
    if assignment.endswith("a: b"):
        assert error is None
        assert changed["spec"]["data"]["systemPrompt"] == {"a": "b"}
        return
    assert error is None
    node: Any = changed["spec"]
    for step in where[:-1]:
        node = node[step]
    assert (node.get(where[-1]) if isinstance(node, dict) else node[where[-1]]) == value


def test_null_removes_a_field():
    changed = document()
    assert assign(changed, "spec.rounds=null") is None
    assert "rounds" not in changed["spec"]


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("spec.rounds", "must be PATH=VALUE"),
        ("rounds=1", "must begin with a path below spec or metadata"),
        ("spec.=1", "must begin with a path below spec or metadata"),
        ("spec.rewards[1].weight=1", "cannot be set: spec.rewards has 1 entries"),
        ("spec.rounds.a=1", "cannot be set: spec.rounds is no object"),
        ("spec.model[0]=1", "cannot be set: spec.model has no list"),
        ("spec.rounds=[1", "must be YAML or JSON"),
        ("spec.rounds=1\n---\n2", "must be one YAML value"),
    ],
)
def test_a_wrong_assignment_is_told_and_changes_nothing(assignment, said):
    before = document()
    with pytest.raises(InvalidSpec, match=said.replace("[", r"\[")):
        localised(before, Path("/x"), {}, [assignment])
    assert before == document()


def test_paths_are_relative_to_the_manifest(tmp_path):
    (tmp_path / "train.jsonl").write_text("")
    found = localised(document(model="./model", file="train.jsonl"), tmp_path, {})
    assert found["spec"]["model"]["source"] == str(tmp_path / "model")
    assert found["spec"]["data"]["prompts"]["file"]["path"] == str(tmp_path / "train.jsonl")


@pytest.mark.parametrize("source", ["/a/b", "hf://a/b", "package://rljob/toy", "Qwen/Qwen3", "", "a\0b"])
def test_other_sources_stay_as_they_are(tmp_path, source):
    """A hub's name without its scheme is refused by the API, which names the scheme."""
    assert localised(document(model=source), tmp_path, {})["spec"]["model"]["source"] == source


def test_a_claim_is_a_folder(tmp_path):
    claims = parse_claims([f"data={tmp_path}"])
    found = localised(document(model="pvc://data", file="pvc://data/a/b.jsonl"), Path("/x"), claims)
    assert found["spec"]["model"]["source"] == str(tmp_path)
    assert found["spec"]["data"]["prompts"]["file"]["path"] == str(tmp_path / "a" / "b.jsonl")
    with pytest.raises(InvalidSpec, match=r"add --claim data=FOLDER"):
        localised(document(model="pvc://data/m"), Path("/x"), {"other": tmp_path})


@pytest.mark.parametrize("text", ["data", "=x", "data=", "data=/no/such/folder"])
def test_a_wrong_claim_is_refused(text):
    with pytest.raises(InvalidSpec, match=r"--claim"):
        parse_claims([text])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(spec=anything, assignment=st.text(max_size=20) | st.just("spec.data.prompts.file.path=./a"))
def test_any_document_is_localised_or_refused_and_never_changed(spec, assignment):
    before = {"spec": spec}
    kept = copy.deepcopy(before)
    with contextlib.suppress(InvalidSpec):
        localised(before, Path("/nowhere"), {}, [assignment])
    assert before == kept
