"""Single values of a manifest are assigned by their path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljob_api import InvalidSpec
from rljob_runtime.cli.assignments import assign
from rljob_runtime.cli.run.manifest import localised

Json = dict[str, Any]


def document() -> Json:
    spec: Json = {"rounds": 8, "rewards": [{"weight": 1.0}], "model": {"source": "hf://a/b"}}
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
