"""Strict comparison of a value with a TypedDict: every key is declared, and every value has its type."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict


def faults(value: object, declared: Any, path: str = "") -> Iterator[str]:
    """Yield each place where a value is not what a type declares."""
    origin, arguments = get_origin(declared), get_args(declared)
    if is_typeddict(declared):
        yield from _of_object(value, declared, path)
    elif declared is Any:
        return
    elif origin is list and isinstance(value, list):
        for index, one in enumerate(value):
            yield from faults(one, arguments[0], f"{path}[{index}]")
    elif origin is dict and isinstance(value, dict):
        for key, one in value.items():
            yield from faults(one, arguments[1], f"{path}.{key}")
    elif origin is Literal:
        if value not in arguments:
            yield f"{path}: {value!r} is none of {arguments}"
    elif origin is UnionType:
        if all(any(faults(value, one, path)) for one in arguments):
            yield f"{path}: {value!r} is no {declared}"
    elif origin is not None or type(value) is not (NoneType if declared is None else declared):
        yield f"{path}: {value!r} is no {declared}"


def _of_object(value: object, declared: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: {value!r} is no object"
        return
    hints = get_type_hints(declared)
    yield from (f"{path}.{key} is not declared" for key in value.keys() - hints.keys())
    yield from (f"{path}.{key} is missing" for key in declared.__required_keys__ - value.keys())
    for key in hints.keys() & value.keys():
        yield from faults(value[key], hints[key], f"{path}.{key}")
