"""Renamed fields: earlier names of fields of the spec, and how each is refused.

A server drops the fields that its schema does not know. So an earlier name stays in the schema, and is refused with the
name that takes its place. One value passes: the former default. Earlier servers wrote it into every stored object, and
the present default means the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.errors import FieldError
from rljob_api.spec.rewards import present_path


@dataclass(frozen=True)
class Renamed:
    """`old` and `new` are names inside the object at `parent`; `new` may be a path. `default` is the former default."""

    parent: str
    old: str
    new: str
    default: float | str | None = None

    @property
    def advice(self) -> str:
        """Name what takes its place."""
        return f"is renamed: set {self.new} instead"


RENAMED = (
    Renamed("data", "onBadLine", "onInvalidRecord", "Fail"),
    Renamed("algorithm", "gradientClip", "maxGradNorm", 1.0),
    Renamed("algorithm", "importanceCap", "truncatedImportanceSampling.cap", 2.0),
    Renamed("experience", "capacityPrompts", "maxPrompts"),
    Renamed("failurePolicy", "againWithinSeconds", "restartWindowSeconds", 600.0),
)


def refused(spec: object) -> Iterator[FieldError]:
    """Find the earlier names in a spec as it was written."""
    for field, parent in _found(spec):
        value = parent[field.old]
        if field.default is None or isinstance(value, bool) or value != field.default:
            yield FieldError(f"spec.{field.parent}.{field.old}", value, field.advice)


def without(spec: Any) -> Any:
    """Drop the earlier names. Return the same object where there are none."""
    found = list(_found(spec))
    if not found:
        return spec
    spec = copy.deepcopy(spec)
    for field, _ in found:
        del spec[field.parent][field.old]
    return spec


def translated(spec: object) -> Any:
    """Move the values of earlier names to the present ones, where those have none.

    Former paths of reward functions become the present ones.
    """
    spec = copy.deepcopy(spec)
    for field, parent in _found(spec):
        value = parent.pop(field.old)
        *above, last = field.new.split(".")
        for step in above:
            parent = parent.setdefault(step, {})
        parent.setdefault(last, value)
    for reward in _functions(spec):
        reward["function"] = present_path(reward["function"])
    return spec


def _functions(spec: object) -> Iterator[Any]:
    """Each reward that names a function."""
    rewards = spec.get("rewards") if isinstance(spec, Mapping) else None
    for reward in rewards if isinstance(rewards, list) else ():
        if isinstance(reward, Mapping) and isinstance(reward.get("function"), str):
            yield reward


def _found(spec: object) -> Iterator[tuple[Renamed, Any]]:
    """Each earlier name that the spec has, with the object that holds it."""
    for field in RENAMED:
        parent = spec.get(field.parent) if isinstance(spec, Mapping) else None
        if isinstance(parent, Mapping) and field.old in parent:
            yield field, parent
