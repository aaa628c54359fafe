"""Pod schema: the fields of a pod's spec with their types, from an API server's OpenAPI document.

    kubectl get --raw /openapi/v3/api/v1 | python -m hack.pod_schema > crds/rljob_api/parsing/pod_schema.json

Run it on the newest Kubernetes that is supported. A test compares the file with what a real server publishes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

ROOT = "io.k8s.api.core.v1.PodSpec"
PUBLISHED = "/openapi/v3/api/v1"
"""Where a server has the document."""

_SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "string",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "object",
}


def reduced(document: Mapping[str, Any]) -> dict[str, Any]:
    """{type: {"fields": {name: type}, "required": [name]}} of everything that a PodSpec may hold."""
    schemas = document["components"]["schemas"]
    found: dict[str, Any] = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if _short(name) in found:
            continue
        schema = schemas[name]
        found[_short(name)] = {
            "fields": {field: _type(one, waiting) for field, one in sorted(schema["properties"].items())},
            "required": sorted(schema.get("required", [])),
        }
    return dict(sorted(found.items()))


def written(document: Mapping[str, Any]) -> str:
    """Return the file's content: a line a type."""
    lines = (f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in reduced(document).items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _type(schema: Mapping[str, Any], waiting: list[str]) -> str:
    """As in Go: `[]T` is a list, `map[]T` an object with names of the user's."""
    if "allOf" in schema:
        (schema,) = schema["allOf"]
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in _SCALARS:
            waiting.append(name)
        return _SCALARS.get(name) or _short(name)
    match schema.get("type"):
        case "array":
            return f"[]{_type(schema['items'], waiting)}"
        case "object":
            return f"map[]{_type(schema['additionalProperties'], waiting)}"
        case "integer":
            return str(schema["format"])
        case "string" | "boolean" as scalar:
            return scalar
    raise ValueError(f"a kind of field that is not known yet: {schema}")


def _short(name: str) -> str:
    return name.rpartition(".")[2]


if __name__ == "__main__":
    sys.stdout.write(written(json.load(sys.stdin)))
