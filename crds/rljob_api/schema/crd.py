"""CRD: the CustomResourceDefinition of the models: structural schema, columns, subresources and CEL rules."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

from rljob_api import constants as c
from rljob_api.admission.renamed import RENAMED
from rljob_api.fields import format_bytes
from rljob_api.schema.cel import RULES
from rljob_api.schema.cel_changes import Rule, transition_rules
from rljob_api.spec import RLJob

Schema = dict[str, Any]

_READY = '.status.conditions[?(@.type=="Ready")]'
COLUMNS: tuple[tuple[str, str, str, int, str], ...] = (
    ("State", "string", ".status.phase", 0, "The state in one word."),
    ("Reason", "string", f"{_READY}.reason", 0, "Why the job is or is not Ready."),
    ("Round", "integer", ".status.runtime.round", 0, "Rounds done."),
    ("Rounds", "integer", ".spec.rounds", 1, "Rounds after which the job is complete."),
    ("Ready", "integer", ".status.rollout.ready", 0, "Rollout machines that are ready."),
    ("Desired", "integer", ".status.rollout.desired", 0, "Rollout machines that there should be."),
    ("TP", "integer", ".status.rollout.tensorParallelSize", 0, "Accelerators of one rollout replica."),
    ("Reward", "number", ".status.runtime.reward", 0, "Mean reward of the last round."),
    ("Replaced", "integer", ".status.replacements.total", 0, "Pods replaced because they failed."),
    ("Relay-Epoch", "integer", ".status.relay.epoch", 1, "Membership of the weight chain."),
    ("Weights", "integer", ".status.runtime.weightVersion", 1, "Newest weight version."),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Time since creation."),
)


def crd() -> Schema:
    """Make the CRD as a plain object."""
    version = {
        "name": c.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root_schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.rollout.machines",
                "statusReplicasPath": ".status.rollout.ready",
                "labelSelectorPath": ".status.rollout.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": description}
            for name, kind, path, priority, description in COLUMNS
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": c.CRD_NAME, "annotations": {c.SCHEMA_REVISION_ANNOTATION: str(c.SCHEMA_REVISION)}},
        "spec": {
            "group": c.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": c.KIND,
                "listKind": c.LIST_KIND,
                "plural": c.PLURAL,
                "singular": c.SINGULAR,
                "shortNames": [c.SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [version],
        },
    }


def _root_schema() -> Schema:
    generated = RLJob.model_json_schema(by_alias=True, mode="validation")
    definitions = generated.pop("$defs")
    root = _structural(generated, definitions)
    spec, status = root["properties"]["spec"], root["properties"]["status"]
    _drop_defaults(status)
    _tell_defaults(spec)
    _keep_renamed(spec)
    status.pop("default", None)
    schema = {
        "type": "object",
        "description": root["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{c.API_VERSION}."},
            "kind": {"type": "string", "description": f"{c.KIND}."},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    for part in (spec, status):
        _own_as_a_whole(part)
    for path, rules in RULES.items():
        _at(schema, path).setdefault("x-kubernetes-validations", []).extend(map(_rule, rules))
    spec["x-kubernetes-validations"].extend(map(_rule, transition_rules()))
    return schema


def _rule(rule: Rule) -> Schema:
    optional = {"optionalOldSelf": True} if rule.optional_old else {}
    return {"rule": rule.expression, "message": rule.message, **optional}


def _at(schema: Schema, path: str) -> Schema:
    """Return the schema at a path such as `spec.rewards[].timeout`."""
    for step in path.split(".") if path else []:
        schema = schema["properties"][step.removesuffix("[]")]
        if step.endswith("[]"):
            schema = schema["items"]
    return schema


_KEPT = {
    "type", "format", "enum", "pattern", "required", "minimum", "maximum", "minLength", "maxLength", "minItems",
    "maxItems", "maxProperties",
}  # fmt: skip


def _structural(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Convert a JSON schema of pydantic to a structural one.

    References are inlined, null alternatives are dropped, lists are typed, and only Kubernetes' keywords stay.
    """
    node = _merged(node, definitions)
    result: Schema = {}
    for key, value in node.items():
        if key == "description":
            result[key] = re.sub(r"\s+", " ", value).strip()
        elif key == "properties":
            result[key] = {name: _structural(child, definitions) for name, child in value.items()}
        elif key == "items" or (key == "additionalProperties" and isinstance(value, dict)):
            result[key] = _structural(value, definitions)
        elif key in ("exclusiveMinimum", "exclusiveMaximum"):
            result["minimum" if key == "exclusiveMinimum" else "maximum"] = value
            result[key] = True
        elif key in _KEPT or key.startswith("x-kubernetes-"):
            result[key] = copy.deepcopy(value)
        elif key not in ("title", "additionalProperties", "default"):
            raise TypeError(f"a structural schema has no {key}: {node}")
    if (default := _default(node.get("default"), result)) is not None:
        result["default"] = default
    if result.get("type") == "array":
        result.setdefault("x-kubernetes-list-type", "atomic")
        if result["x-kubernetes-list-type"] == "map" and node.get("default") == []:
            # Merged item by item, an apply that empties it would leave null.
            result["default"] = []
    return result


def _merged(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Resolve a node's `$ref` and its `X | None`. The field's values override the type's."""
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        return _merged({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    if "anyOf" in node:
        real = [choice for choice in node["anyOf"] if choice != {"type": "null"}]
        if len(real) != 1:
            raise TypeError(f"a structural schema has no alternatives: {node}")
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _merged({**_merged(real[0], definitions), **rest}, definitions)
    return node


def _default(value: Any, schema: Schema) -> Any:
    """Write a server's default out.

    The server checks CEL rules against a default as written, before it fills in the fields inside. Null and empty ones
    stay absent.
    """
    if isinstance(value, dict) and "properties" in schema:
        inner = {name: _default(value.get(name), child) for name, child in schema["properties"].items()}
        value = {name: default for name, default in inner.items() if default is not None}
    elif isinstance(value, int) and schema.get("type") == "string":
        value = format_bytes(value)
    return None if value in (None, [], {}) else copy.deepcopy(value)


def _tell_defaults(schema: Schema) -> None:
    """Add the defaults of fields to their descriptions: `kubectl explain` shows none of them."""
    for child in _children(schema):
        default = child.get("default")
        if default is not None and not isinstance(default, dict):
            text = default if isinstance(default, str) else json.dumps(default).removesuffix(".0")
            child["description"] += f" Default: {text}."
        _tell_defaults(child)


def _keep_renamed(spec: Schema) -> None:
    """Keep the earlier names of fields, without a default, for the rules that refuse them."""
    for field in RENAMED:
        parent = _at(spec, field.parent)
        earlier = copy.deepcopy(_at(parent, field.new))
        earlier.pop("default", None)
        allowed = "" if field.default is None else f" but for its former default, {json.dumps(field.default)}"
        earlier["description"] = f"Deprecated: use {field.new}. It is refused{allowed}."
        parent["properties"][field.old] = earlier


def _drop_defaults(schema: Schema) -> None:
    """Remove all defaults of the status: a default has no owner, and both writers would conflict over it."""
    for child in _children(schema):
        child.pop("default", None)
        _drop_defaults(child)


def _own_as_a_whole(schema: Schema) -> None:
    """Mark an optional object without defaults inside as atomic.

    Merged key by key, an apply that empties it would leave null, which is refused
    (kubernetes-sigs/structured-merge-diff, issue 305). With defaults inside it is never empty. Atomic it would then
    differ from each further apply, which would be a write.
    """
    for name, child in schema.get("properties", {}).items():
        if child.get("type") == "object" and name not in schema.get("required", ()) and not _has_defaults(child):
            child["x-kubernetes-map-type"] = "atomic"
    for child in _children(schema):
        if child.get("x-kubernetes-map-type") != "atomic":
            _own_as_a_whole(child)


def _has_defaults(schema: Schema) -> bool:
    return "default" in schema or any(_has_defaults(child) for child in schema.get("properties", {}).values())


def _children(schema: Schema) -> Iterator[Schema]:
    yield from schema.get("properties", {}).values()
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield schema[key]
