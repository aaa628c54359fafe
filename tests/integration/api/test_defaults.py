"""What a server makes of a job is what the models make of it: the same defaults, whatever is left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import load
from rljob_api.schema.crd import crd
from tests.support.api.jobs import job
from tests.support.api.kubectl import Kube
from tests.support.paths import ROOT

pytestmark = pytest.mark.cluster

SPEC = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def without_empty(node: Any) -> Any:
    """The models write `{}` and `[]` where the server has nothing: a default of that kind says nothing."""
    if isinstance(node, dict):
        return {key: value for key, item in node.items() if (value := without_empty(item)) not in ({}, [])}
    return [without_empty(item) for item in node] if isinstance(node, list) else node


def assert_both_make_the_same(server: Kube, document: dict[str, Any]) -> None:
    stored, read = server.admitted(document), load(document)
    assert load(stored).spec == read.spec
    assert without_empty(stored["spec"]) == without_empty(read.spec.to_dict())


def objects(schema: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, bool]]:
    """The path of every object with fields of its own that a user may write as `{}`, and whether it has a default."""
    for name, child in schema.get("properties", {}).items():
        if child.get("type") == "object" and "required" not in child and "properties" in child:
            yield f"{path}.{name}", "default" in child
        if "required" not in child or name in schema.get("required", ()):
            yield from objects(child, f"{path}.{name}")


OBJECTS = dict(objects(SPEC))
for path in ("data", "data.prompts", "accelerator", "trainer.accelerator", "rollout.accelerator"):
    del OBJECTS[f"spec.{path}"]  # one of the fields inside must be named
del OBJECTS["spec.episode"]  # it needs environments
DEFAULTED = [path for path, defaulted in OBJECTS.items() if defaulted]


def test_there_are_objects_to_leave_empty() -> None:
    assert len(DEFAULTED) > 10
    assert {"spec.algorithm.dynamicSampling", "spec.failurePolicy.backoff", "spec.rollout.engineOptions"} <= set(
        DEFAULTED
    )


def test_of_the_least_that_makes_a_job(server: Kube) -> None:
    assert_both_make_the_same(server, job())


@pytest.mark.parametrize("path", OBJECTS)
def test_of_an_empty_object(server: Kube, path: str) -> None:
    assert_both_make_the_same(server, job({path: {}}))


def test_of_empty_objects_in_a_reward(server: Kube) -> None:
    code = {"name": "c", "kind": "Code", "code": {}, "timeout": {}}
    assert_both_make_the_same(server, job({"spec.rewards[1]": code}))


@settings(max_examples=50)
@given(st.sets(st.sampled_from(sorted(OBJECTS))))
def test_of_any_of_them(server: Kube, paths: set[str]) -> None:
    assert_both_make_the_same(server, job({path: {} for path in sorted(paths, reverse=True)}))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_of_an_example(server: Kube, example: Path) -> None:
    for document in yaml.safe_load_all(example.read_text(encoding="utf-8")):
        if document["kind"] == "RLJob":
            document["metadata"]["namespace"] = server.namespace
            assert_both_make_the_same(server, document)


@pytest.mark.parametrize("path", DEFAULTED)
def test_every_rule_accepts_the_default_of_its_field(server: Kube, path: str) -> None:
    """As the server filled it in, sent again by a user."""
    default = server.admitted(job())["spec"]
    for step in path.split(".")[1:]:
        default = default[step]
    assert default
    assert server.refusals(job({path: default}), strict=True) == []
