"""Pod schema: checks the types of a template's pod fields, at any depth.

The types come from the OpenAPI document of Kubernetes (`pod_schema.json`, made by `hack/pod_schema.py`). Unknown names
pass, because a newer Kubernetes may know them. A name that resembles a known one is a typing mistake.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rljob_api.errors import ABSENT, FieldError

Errors = Iterator[FieldError]

MOST_UNKNOWN = 64
"""Unknown fields of one template. Each is compared with every known one, which takes up to a millisecond."""
LONGEST_COMPARED = 64
"""Characters of a name that may be a typing mistake; the longest known one has 47."""

_LIST, _MAP = "[]", "map[]"
_QUANTITY = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_BITS = {"int32": 32, "int64": 64}


@dataclass(frozen=True)
class _Type:
    """An object type of the API."""

    fields: Mapping[str, str]
    required: frozenset[str]


@cache
def _types() -> Mapping[str, _Type]:
    found = json.loads(Path(__file__).with_name("pod_schema.json").read_text(encoding="utf-8"))
    return {name: _Type(one["fields"], frozenset(one["required"])) for name, one in found.items()}


def fields(kind: str) -> frozenset[str]:
    """Return the names of a type's fields, e.g. of `PodSpec`."""
    return frozenset(_types()[kind].fields)


def mistakes(path: str, kind: str, value: Mapping[str, Any]) -> Errors:
    """Find mistakes in a partial object of type `kind`.

    They are values of another type, entries that lack a field, and typing mistakes. Any field of the object itself may
    be absent.
    """
    yield from _Walk().fields(path, kind, value, frozenset())


def without_nulls(value: object) -> object:
    """Drop fields that are null: to Kubernetes these are absent."""
    if isinstance(value, Mapping):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(one) for one in value]
    return value


class _Walk:
    """A walk through an object and its type."""

    def __init__(self) -> None:
        self._unknown = 0

    def value(self, path: str, kind: str, value: object) -> Errors:
        """Find mistakes in a value of type `kind`."""
        if kind.startswith(_LIST):
            if not isinstance(value, list | tuple):
                yield FieldError(path, value, "must be a list")
                return
            for index, one in enumerate(value):
                yield from self.value(f"{path}[{index}]", kind.removeprefix(_LIST), one)
        elif kind.startswith(_MAP):
            if not isinstance(value, Mapping):
                yield FieldError(path, value, "must be an object")
                return
            for key, one in value.items():
                yield from self.value(f"{path}[{key}]", kind.removeprefix(_MAP), one)
        elif kind in _types():
            yield from self.fields(path, kind, value, _types()[kind].required)
        else:
            advice = _scalar(kind, value)
            if advice is not None:
                yield FieldError(path, value, advice)

    def fields(self, path: str, kind: str, value: object, required: frozenset[str]) -> Errors:
        """Find mistakes in an object of type `kind`."""
        if not isinstance(value, Mapping):
            yield FieldError(path, value, "must be an object")
            return
        known = _types()[kind].fields
        for name in sorted(required - value.keys()):
            what = "a string" if known[name] == "string" else f"a field of {kind}"
            yield FieldError(f"{path}.{name}", ABSENT, f"is required, {what}")
        lower = {name.lower(): name for name in known}
        for name, one in value.items():
            if name in known:
                yield from self.value(f"{path}.{name}", known[name], one)
            else:
                yield from self._undefined(path, name, one, lower)

    def _undefined(self, path: str, name: str, value: object, lower: Mapping[str, str]) -> Errors:
        self._unknown += 1
        if self._unknown == MOST_UNKNOWN + 1:
            advice = f"is one more field that no Kubernetes known here has; at most {MOST_UNKNOWN} may be"
            yield FieldError(f"{path}.{name[:LONGEST_COMPARED]}", value, advice)
        if self._unknown > MOST_UNKNOWN:
            return
        close = difflib.get_close_matches(name[:LONGEST_COMPARED].lower(), lower, n=1, cutoff=0.8)
        if close:
            advice = f"is not a field of {path}; did you mean {lower[close[0]]}?"
            yield FieldError(f"{path}.{name}", value, advice)


def _scalar(kind: str, value: object) -> str | None:
    """Return what a value must be; None where it is right."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case "string":
            return None if isinstance(value, str) else "must be a string; put it in quotes"
        case "boolean":
            return None if isinstance(value, bool) else "must be true or false"
        case "int32" | "int64":
            largest = 1 << (_BITS[kind] - 1)
            fits = whole and isinstance(value, int) and -largest <= value < largest
            return None if fits else f"must be a whole number of {_BITS[kind]} bits"
        case "int-or-string":
            return None if whole or isinstance(value, str) else "must be a whole number or a string"
        case "quantity":
            number = (whole or isinstance(value, float | str)) and _QUANTITY.fullmatch(str(value)) is not None
            return None if number else "must be a quantity such as 2, 500m or 4Gi"
        case "object":
            return None if isinstance(value, Mapping) else "must be an object"
    raise ValueError(f"pod_schema.json: no type {kind}")
