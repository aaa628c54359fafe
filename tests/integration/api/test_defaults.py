"""What a server makes of a job is what the models make of it: the same defaults, whatever is left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import load
from rljob_api.errors import InvalidSpec
from rljob_api.schema.crd import crd
from tests.support.api.jobs import REMOVE, job, steps
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
    """The path of every object that a user may write as `{}`, and whether it has a default."""
    for name, child in schema.get("properties", {}).items():
        if child.get("type") == "object" and "required" not in child:
            yield f"{path}.{name}", "default" in child
        yield from objects(child, f"{path}.{name}")
        yield from objects(child.get("items", {}), f"{path}.{name}[]")


OF_ANOTHER_KIND = {
    "spec.rewards[].code": "spec.rewards[1].code",
    "spec.environments[].verifiers": "spec.environments[1].verifiers",
}
"""Only the second item of `LISTS` is of the kind that has this field."""


def place(path: str) -> str:
    """Where a job with `LISTS` has the object."""
    for general, one in OF_ANOTHER_KIND.items():
        path = path.replace(general, one)
    return path.replace("[]", "[0]")


PROMPTS = {"reasoningGym": {"task": "basic_arithmetic"}}
LISTS: dict[str, list[dict[str, Any]]] = {
    "spec.data.sources": [{"name": "sums", "prompts": PROMPTS, "weight": 1}],
    "spec.rewards": [{"name": "right", "kind": "ReasoningGym"}, {"name": "code", "kind": "Code"}],
    "spec.environments": [
        {"name": "calc", "kind": "Tools", "tools": [{"function": "tools.py:add"}]},
        {"name": "maths", "kind": "Verifiers", "verifiers": {"id": "gsm8k"}},
    ],
    "spec.evaluation": [{"name": "sums", "prompts": PROMPTS}],
    "spec.observers": [{"name": "tensorboard"}],
}
"""Every list with objects in its items, with the least that makes an item valid."""


def with_empty(paths: Iterable[str]) -> dict[str, Any]:
    """A job with `{}` at these paths, and the lists that they are in."""
    wanted = set(paths)
    lists = {name: items for name, items in LISTS.items() if any(path.startswith(f"{name}[") for path in wanted)}
    if "spec.episode" in wanted:
        lists["spec.environments"] = LISTS["spec.environments"]
    edits: dict[str, Any] = dict(lists)
    if "spec.data.sources" in lists:
        edits["spec.data.prompts"] = REMOVE
        wanted = {path for path in wanted if not path.startswith("spec.data.prompts.")}
    # An object comes before the one around it: that stays empty.
    return job(edits | {path: {} for path in sorted(wanted, reverse=True)})


FOUND = {place(path): defaulted for path, defaulted in objects(SPEC)}
NAMES_ONE = {
    "spec.data", "spec.data.prompts", "spec.data.sources[0].prompts", "spec.evaluation[0].prompts", "spec.accelerator",
    "spec.trainer.accelerator", "spec.rollout.accelerator",
}  # fmt: skip
"""One of the fields inside must be there."""
OBJECTS = sorted(FOUND.keys() - NAMES_ONE)
DEFAULTED = [path for path in OBJECTS if FOUND[path]]


def test_there_are_objects_to_leave_empty() -> None:
    assert {"spec.algorithm.dynamicSampling", "spec.failurePolicy.backoff", "spec.rollout.engineOptions"} <= set(
        DEFAULTED
    )
    assert {"spec.rewards[0].range", "spec.rewards[0].timeout"} <= set(DEFAULTED)
    in_lists = {"spec.evaluation[0].sampling", "spec.environments[0].egress", "spec.environments[0].template.spec"}
    assert in_lists <= set(OBJECTS)
    assert {path.partition("[")[0] for path in OBJECTS if "[" in path} == LISTS.keys()


def test_of_the_least_that_makes_a_job(server: Kube) -> None:
    assert_both_make_the_same(server, job())


@pytest.mark.parametrize("path", OBJECTS)
def test_of_an_empty_object(server: Kube, path: str) -> None:
    assert_both_make_the_same(server, with_empty([path]))


@pytest.mark.parametrize("path", sorted(NAMES_ONE))
def test_neither_takes_an_empty_object_that_must_name_a_field(server: Kube, path: str) -> None:
    document = with_empty([path])
    assert server.refusals(document) != []
    with pytest.raises(InvalidSpec, match=re.escape(path)):
        load(document)


@settings(max_examples=50)
@given(st.sets(st.sampled_from(OBJECTS)))
def test_of_any_of_them(server: Kube, paths: set[str]) -> None:
    assert_both_make_the_same(server, with_empty(paths))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_of_an_example(server: Kube, example: Path) -> None:
    for document in yaml.safe_load_all(example.read_text(encoding="utf-8")):
        if document["kind"] == "RLJob":
            document["metadata"]["namespace"] = server.namespace
            assert_both_make_the_same(server, document)


@pytest.mark.parametrize("path", DEFAULTED)
def test_every_rule_accepts_the_default_of_its_field(server: Kube, path: str) -> None:
    """As the server filled it in, sent again by a user."""
    document = with_empty([path])
    default: Any = server.admitted(document)
    for step in steps(path):
        default = default[step]
    assert default
    assert server.refusals(job({path: default}, document), strict=True) == []
