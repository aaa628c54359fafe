"""Assignments: single values of a manifest that the command line sets, as `--set spec.rounds=3`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rljob_api.errors import ABSENT, FieldError, InvalidSpec
from rljob_api.parsing import yaml_text

Document = dict[str, Any]

_STEP = re.compile(r"([A-Za-z_][\w-]*)((?:\[\d+\])*)\Z")


def assign_all(document: Mapping[str, Any], assignments: Sequence[str]) -> Document:
    """Return the manifest with assigned values (see `assign`). Raises `InvalidSpec` with every mistake."""
    result: Document = copy.deepcopy(dict(document))
    refuse(assign(result, assignment) for assignment in assignments)
    return result


def assign(document: Document, assignment: str) -> FieldError | None:
    """Assign `PATH=VALUE`, with the value in YAML, to a field of the document; return the mistake, if there is one.

    Example: `spec.rollout.machines=2`, `spec.rewards[0].weight=0.5`. The value null removes the field.
    """
    path, equals, text = assignment.partition("=")
    if not equals:
        return FieldError("--set", assignment, "must be PATH=VALUE, for example spec.rounds=3")
    steps = _steps(path)
    if not steps or steps[0] not in ("spec", "metadata"):
        return FieldError("--set", assignment, "must begin with a path below spec or metadata, such as spec.rounds")
    try:
        (value,) = yaml_text.documents(text) or [None]
    except InvalidSpec as error:
        return FieldError(path, text, error.errors[0].message)
    except ValueError:
        return FieldError(path, text, "must be one YAML value")
    return _put(document, path, steps, value)


def _steps(path: str) -> list[str | int]:
    """Split a path into names and numbers; empty if it is no path."""
    steps: list[str | int] = []
    for part in path.split("."):
        match = _STEP.match(part)
        if match is None:
            return []
        steps.append(match.group(1))
        steps += [int(number) for number in re.findall(r"\d+", match.group(2))]
    return steps


def _put(document: Document, path: str, steps: Sequence[str | int], value: Any) -> FieldError | None:
    node: Any = document
    for place, step in enumerate(steps):
        last = place == len(steps) - 1
        where = _shown(steps[:place]) or "the manifest"
        if isinstance(step, int):
            if not isinstance(node, list) or step >= len(node):
                count = f"{len(node)} entries" if isinstance(node, list) else "no list"
                return FieldError(path, ABSENT, f"cannot be set: {where} has {count}")
        elif not isinstance(node, dict):
            return FieldError(path, ABSENT, f"cannot be set: {where} is no object")
        if not last:
            if isinstance(node, dict) and node.get(str(step)) is None:
                node[str(step)] = {}
            node = node[step]
        elif value is None and isinstance(node, dict):
            node.pop(str(step), None)
        else:
            node[step] = value
    return None


def _shown(steps: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def refuse(errors: Iterable[FieldError | None]) -> None:
    """Raise `InvalidSpec` with the mistakes, if there are any."""
    if found := [error for error in errors if error is not None]:
        raise InvalidSpec(found)
