"""Local manifest: what a manifest means on this machine.

A path may be relative to the manifest's folder, a claim is a folder, and single values may be assigned.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_api.constants import claim_path
from rljob_api.errors import ABSENT, FieldError, InvalidSpec
from rljob_api.parsing import yaml_text

Document = dict[str, Any]

SOURCES = ("model.source", "data.prompts.file.path", "data.prompts.dataset.path")
"""Fields of the spec that name a file or a folder."""
_STEP = re.compile(r"([A-Za-z_][\w-]*)((?:\[\d+\])*)\Z")


def localised(
    document: Mapping[str, Any], folder: Path, claims: Mapping[str, Path], assignments: Sequence[str] = ()
) -> Document:
    """Return the manifest with assigned values, absolute paths, and folders in place of claims.

    `folder` is the manifest's. Raises `InvalidSpec` with every mistake. Values of a wrong type are left as they are:
    `rljob_api.load` refuses them with their reason.
    """
    result = assign_all(document, assignments)
    _refuse(error for error in (_localise(result, path, folder, claims) for path in SOURCES) if error is not None)
    return result


def assign_all(document: Mapping[str, Any], assignments: Sequence[str]) -> Document:
    """Return the manifest with assigned values (see `assign`). Raises `InvalidSpec` with every mistake."""
    result: Document = copy.deepcopy(dict(document))
    _refuse(error for error in (assign(result, assignment) for assignment in assignments) if error is not None)
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


def _localise(document: Document, path: str, folder: Path, claims: Mapping[str, Path]) -> FieldError | None:
    *above, last = path.split(".")
    node: Any = document.get("spec")
    for step in above:
        node = node.get(step) if isinstance(node, dict) else None
    source = node.get(last) if isinstance(node, dict) else None
    if not isinstance(source, str):
        return None
    if (claimed := claim_path(source)) is not None:
        claim = claimed[0]
        if claim not in claims:
            advice = f"is on a claim of a cluster; add --claim {claim}=FOLDER with its folder on this machine"
            return FieldError(f"spec.{path}", source, advice)
        below = source.removeprefix(f"pvc://{claim}").strip("/")
        node[last] = str(claims[claim] / below)
    elif _is_relative(source, folder):
        node[last] = str(folder.absolute() / Path(source).expanduser())
    return None


def _is_relative(source: str, folder: Path) -> bool:
    """Tell whether a source is a path from the manifest's folder.

    A name without a leading dot is one only if there is such a file: it may be a hub's name without `hf://`.
    """
    if source in ("", ".") or source.startswith("/") or "://" in source or "\0" in source:
        return False
    return source.startswith(("./", "../", "~/")) or (folder / source).exists()


def parse_claims(given: Sequence[str]) -> dict[str, Path]:
    """Return folders by claim from `NAME=FOLDER` texts. Raises `InvalidSpec`."""
    claims: dict[str, Path] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not name or not equals or not folder:
            _refuse([FieldError("--claim", text, "must be NAME=FOLDER, for example data=/mnt/data")])
        place = Path(folder).expanduser().absolute()
        if not place.is_dir():
            _refuse([FieldError("--claim", text, f"must name a folder; {place} is none")])
        claims[name] = place
    return claims


def _refuse(errors: Iterable[FieldError]) -> None:
    if found := list(errors):
        raise InvalidSpec(found)
