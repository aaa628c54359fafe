"""The CRD as an object: fresh, structural, with everything a user sees."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rljob_api.__main__ import CRD, POLICY, render
from rljob_api.constants import SCHEMA_REVISION, SCHEMA_REVISION_ANNOTATION
from rljob_api.schema.crd import COLUMNS, crd
from rljob_api.schema.downgrade import downgrade_policy
from tests.support.paths import ROOT

VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in the schema, with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}.*")


NODES = dict(nodes(SCHEMA))


@pytest.mark.parametrize(("what", "file"), [(CRD, "crds/rljob.yaml"), (POLICY, "crds/downgrade-policy.yaml")])
def test_the_checked_in_file_is_fresh(what: str, file: str) -> None:
    assert (ROOT / file).read_text() == render(what), f"run: python -m rljob_api {what} > {file}"


@pytest.mark.parametrize(("arguments", "printed"), [((), [crd()]), ((CRD,), [crd()]), ((POLICY,), downgrade_policy())])
def test_the_command_prints_it(arguments: tuple[str, ...], printed: list[dict[str, Any]]) -> None:
    command = [sys.executable, "-m", "rljob_api", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert list(yaml.safe_load_all(done.stdout)) == printed


FIELDS = {
    1: "de5ef8f9ef0f045d",
    2: "d9e4881d576672cd",
    3: "295b26035c34695b",
    4: "05f72e03ed888935",
    5: "5f213f894ce66c42",
    6: "ebea446b28688be3",
    7: "8c87770974326493",
    8: "404394aa9d4420df",
    9: "b48d0c398e782214",
    10: "902f0167b9f1dd3f",
    11: "22f6a62720007415",
    12: "79b7f856e7a19fe6",
    13: "f5c88ba5e9610ea6",
    14: "cd056ea43cb3b1de",
    15: "3f9914a86195db31",
    16: "6c8c1555420d2a50",
    17: "3d9d354ab5d4dea4",
    18: "dfc7969ec6bab54e",
    19: "96d2aa0940246fa6",
    20: "2f6b793b38ebddc3",
    21: "fdfe14468fc36431",
    22: "f35432efa9286aac",
    23: "7024c180422cc8b5",
    24: "975387b023ea10a8",
    25: "d051b1e5d0010fec",
    26: "8289fd331d9d29e7",
}
"""Digest of the names of all fields, by schema revision."""


def test_other_fields_are_another_schema_revision() -> None:
    """By the revision a downgrade is told: under a schema with fewer fields the server drops the others."""
    digest = hashlib.sha256("\n".join(sorted(NODES)).encode()).hexdigest()[:16]
    told = f"the fields have changed: raise SCHEMA_REVISION and add its digest here, {digest}"
    assert FIELDS.get(SCHEMA_REVISION) == digest, told
    assert max(FIELDS) == SCHEMA_REVISION
    assert len(set(FIELDS.values())) == len(FIELDS)
    assert crd()["metadata"]["annotations"] == {SCHEMA_REVISION_ANNOTATION: str(SCHEMA_REVISION)}


def test_it_is_structural_and_of_few_keywords() -> None:
    known = {
        "type", "format", "description", "properties", "required", "items", "additionalProperties", "default", "enum",
        "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems",
        "maxItems", "maxProperties", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
        "x-kubernetes-int-or-string", "x-kubernetes-map-type", "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    }  # fmt: skip
    for path, node in NODES.items():
        assert node.keys() <= known, path
        # Without a type only where servers are told to keep what they find: fields that take Auto or All.
        untyped = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string")
        assert "type" in node or any(node.get(name) for name in untyped), path
        assert not ("properties" in node and "additionalProperties" in node), path


def test_every_list_says_how_it_merges_and_every_size_is_bounded() -> None:
    """Bounds keep the estimated cost of CEL rules low; a server refuses the CRD otherwise."""
    for path, node in NODES.items():
        if node.get("type") == "array":
            assert "x-kubernetes-list-type" in node, path
            assert "maxItems" in node, path
        if node.get("type") == "string" and path not in (".apiVersion", ".kind"):
            assert node.keys() & {"maxLength", "enum", "format"}, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


@pytest.mark.parametrize(
    ("path", "kind", "keys"),
    [
        (".spec.rewards", "map", ["name"]),
        (".spec.rollout.allowedTensorParallelSizes", "atomic", None),
        (".spec.rollout.template.spec.containers", "map", ["name"]),
        (".status.conditions", "map", ["type"]),
        (".status.members", "atomic", None),
        (".status.relay.chain", "atomic", None),
        (".status.target.machines", "atomic", None),
    ],
)
def test_list_types(path: str, kind: str, keys: list[str] | None) -> None:
    assert NODES[path]["x-kubernetes-list-type"] == kind
    assert NODES[path].get("x-kubernetes-list-map-keys") == keys
    for key in keys or []:
        assert key in NODES[path]["items"]["required"]


def test_an_object_that_may_be_left_out_is_filled_in_or_owned_as_a_whole() -> None:
    """Merged key by key, an apply that empties it would leave null. With defaults inside it never is empty, and then it
    must be merged: owned as a whole it would differ from each further apply."""

    def merged(schema: dict[str, Any], path: str) -> Iterator[str]:
        for name, child in schema.get("properties", {}).items():
            if child.get("x-kubernetes-map-type") == "atomic" or child.get("x-kubernetes-list-type") == "atomic":
                continue
            optional = child.get("type") in ("object", "array") and name not in schema.get("required", ())
            filled = "default" in child or any("default" in inner for inner in child.get("properties", {}).values())
            if optional and not filled:
                yield f"{path}.{name}"
            yield from merged(child, f"{path}.{name}")
        for item in (schema.get("items"), schema.get("additionalProperties")):
            if isinstance(item, dict):
                yield from merged(item, f"{path}[]")

    found = [path for part in ("spec", "status") for path in merged(SCHEMA["properties"][part], f".{part}")]
    # Prompts are immutable, and the conditions have the operator's for ever.
    assert found == [".spec.data.prompts", ".spec.data.sources", ".status.conditions"]
    owned = [path for path, node in NODES.items() if node.get("x-kubernetes-map-type") == "atomic"]
    assert [path for path in owned if any("default" in inner for _, inner in nodes(NODES[path]))] == []
    assert "x-kubernetes-map-type" not in SCHEMA["properties"]["status"]  # which has two writers


def test_the_default_of_an_object_is_written_out() -> None:
    """A server checks the rules of an object against its default as it stands: every field inside that has a default is
    in it, and it is the same one, so that `{}` means what an absent object means."""
    checked = 0
    for path, node in NODES.items():
        default = node.get("default")
        if isinstance(default, dict):
            inner = {name: child["default"] for name, child in node["properties"].items() if "default" in child}
            assert default == inner != {}, path
            checked += 1
    assert checked > 10


def test_nothing_in_the_status_has_a_default() -> None:
    assert [path for path, node in NODES.items() if path.startswith(".status") and "default" in node] == []


def test_names_and_subresources() -> None:
    names = crd()["spec"]["names"]
    assert names["shortNames"] == ["rlj"]
    assert names["categories"] == ["all"]
    scale = VERSION["subresources"]["scale"]
    assert scale["specReplicasPath"] == ".spec.rollout.machines"
    assert scale["statusReplicasPath"] == ".status.rollout.ready"
    assert scale["labelSelectorPath"] == ".status.rollout.selector"
    for path in (*scale.values(), *(column[2] for column in COLUMNS if "[?" not in column[2])):
        assert path in NODES or path == ".metadata.creationTimestamp", path


def test_columns_pick_conditions_by_type_and_never_by_position() -> None:
    for column in VERSION["additionalPrinterColumns"]:
        assert "[0]" not in column["jsonPath"]
        assert "[-1" not in column["jsonPath"]


def test_every_rule_has_a_message_of_one_line() -> None:
    rules = [(path, rule) for path, node in NODES.items() for rule in node.get("x-kubernetes-validations", [])]
    assert len(rules) > 40
    for path, rule in rules:
        assert rule["message"], path
        assert "\n" not in rule["message"]
    assert len({(path, rule["rule"]) for path, rule in rules}) == len(rules)
