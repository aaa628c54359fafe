"""What an API server does with an RLJob at admission, in a few functions: prune, default, validate by schema, run CEL.

A stand-in (no server of 1.25 or later runs in these tests): it walks the very schema that the CRD carries.
"""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

import celpy
from celpy import celtypes

Schema = dict[str, Any]
_ENVIRONMENT = celpy.Environment()


def admit(schema: Schema, new: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """Everything the server would refuse `new` for; with `old` as an update of it."""
    new = defaulted(schema, new)
    errors = list(_violations(schema, new, ""))
    if errors:
        return errors  # CEL runs on objects that fit the schema only
    return list(_broken_rules(schema, new, defaulted(schema, old) if old else None, ""))


def defaulted(schema: Schema, value: Any) -> Any:
    """A pruned copy with defaults filled in, top down as the server does."""
    if schema.get("type") == "object" and isinstance(value, dict):
        properties = schema.get("properties")
        if properties is None:
            return copy.deepcopy(value)
        keep = schema.get("x-kubernetes-preserve-unknown-fields", False)
        result = {k: copy.deepcopy(v) for k, v in value.items() if k in properties or keep}
        for name, child in properties.items():
            if name not in result and "default" in child:
                result[name] = copy.deepcopy(child["default"])
            if name in result:
                result[name] = defaulted(child, result[name])
        return result
    if schema.get("type") == "array" and isinstance(value, list):
        return [defaulted(schema["items"], item) for item in value]
    return value


_TYPES = {
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def _violations(schema: Schema, value: Any, path: str) -> Any:
    kind = schema.get("type")
    if kind and not _TYPES[kind](value):
        yield f"{path}: not of type {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: not one of {schema['enum']}"
    yield from _out_of_bounds(schema, value, path)
    if isinstance(value, dict):
        for name in schema.get("required", []):
            if name not in value:
                yield f"{path}.{name}: required"
        for name, child in schema.get("properties", {}).items():
            if name in value:
                yield from _violations(child, value[name], f"{path}.{name}")
        for name, item in value.items():
            if "additionalProperties" in schema:
                yield from _violations(schema["additionalProperties"], item, f"{path}.{name}")
    if isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys")
        seen = [[item.get(k) for k in keys] if keys and isinstance(item, dict) else item for item in value]
        if schema["x-kubernetes-list-type"] != "atomic" and any(seen.count(item) > 1 for item in seen):
            yield f"{path}: duplicate"
        for index, item in enumerate(value):
            yield from _violations(schema["items"], item, f"{path}[{index}]")


def _out_of_bounds(schema: Schema, value: Any, path: str) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
        if value < low or (value == low and schema.get("exclusiveMinimum")):
            yield f"{path}: below {low}"
        if value > high or (value == high and schema.get("exclusiveMaximum")):
            yield f"{path}: above {high}"
    for types, at_least, at_most in (
        (str, "minLength", "maxLength"),
        (list, "minItems", "maxItems"),
        (dict, "", "maxProperties"),
    ):
        if isinstance(value, types) and not schema.get(at_least, 0) <= len(value) <= schema.get(at_most, 1 << 40):
            yield f"{path}: length {len(value)}"
    if isinstance(value, str) and "pattern" in schema and re.search(schema["pattern"], value) is None:
        yield f"{path}: does not match {schema['pattern']}"


@cache
def _program(expression: str) -> Any:
    return _ENVIRONMENT.program(_ENVIRONMENT.compile(expression))


def holds(expression: str, schema: Schema, new: Any, old: Any = None) -> bool:
    """The verdict of one rule on a value; an evaluation error counts as a refusal, as on the server."""
    activation = {"self": _typed(schema, new)}
    if old is not None:
        activation["oldSelf"] = _typed(schema, old)
    try:
        return bool(_program(expression).evaluate(activation))
    except celpy.CELEvalError:
        return False


def _broken_rules(schema: Schema, new: Any, old: Any, path: str) -> Any:
    for rule in schema.get("x-kubernetes-validations", []):
        transition = "oldSelf" in rule["rule"]
        if (not transition or old is not None) and not holds(rule["rule"], schema, new, old if transition else None):
            yield f"{path}: {rule['message']}"
    if isinstance(new, dict):
        for name, child in schema.get("properties", {}).items():
            if name in new:
                before = old.get(name) if isinstance(old, dict) else None
                yield from _broken_rules(child, new[name], before, f"{path}.{name}")
    if isinstance(new, list):
        for index, item in enumerate(new):
            yield from _broken_rules(schema["items"], item, None, f"{path}[{index}]")


# As the server names fields that are words of CEL.
_WORDS = {
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
    "loop", "package", "namespace", "return",
}  # fmt: skip


def _escaped(name: str) -> str:
    return f"__{name}__" if name in _WORDS else name


def _typed(schema: Schema, value: Any) -> Any:
    """The value as CEL sees it: typed by the schema, so that `2` in a number field is a double."""
    if isinstance(value, dict) and "properties" in schema:
        return celtypes.MapType(
            {
                celtypes.StringType(_escaped(name)): _typed(schema["properties"].get(name, {}), item)
                for name, item in value.items()
            }
        )
    if isinstance(value, list) and "items" in schema:
        return celtypes.ListType([_typed(schema["items"], item) for item in value])
    if schema.get("type") == "number":
        return celtypes.DoubleType(value)
    return celpy.json_to_cel(value)
