"""Local manifest: what a manifest means on this machine.

A path may be relative to the manifest's folder, and a claim is a folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_api.constants import claim_path
from rljob_api.errors import FieldError
from rljob_runtime.cli.assignments import Document, assign_all, refuse

SOURCES = (
    "model.source",
    "data.prompts.file.path",
    "data.prompts.dataset.path",
    "data.chatTemplateFile",
    "data.sources[].prompts.file.path",
    "data.sources[].prompts.dataset.path",
    "evaluation[].prompts.file.path",
    "evaluation[].prompts.dataset.path",
)
"""Fields of the spec that name a file or a folder. `[]` stands for each item of a list."""
CODE = ("environments[].tools[].function", "environments[].function", "environments[].reward")
"""Fields of the spec that name a function of a file, as path.py:function, or of a module."""


def localised(
    document: Mapping[str, Any], folder: Path, claims: Mapping[str, Path], assignments: Sequence[str] = ()
) -> Document:
    """Return the manifest with assigned values, absolute paths, and folders in place of claims.

    `folder` is the manifest's. Raises `InvalidSpec` with every mistake. Values of a wrong type are left as they are:
    `rljob_api.load` refuses them with their reason.
    """
    result = assign_all(document, assignments)
    spec = result.get("spec")
    sources = (_localise(node, last, path, folder, claims) for node, last, path in _fields(spec, SOURCES))
    code = (_localise_code(node, last, path, folder) for node, last, path in _fields(spec, CODE))
    refuse((*sources, *code))
    return result


def _fields(spec: Any, fields: Sequence[str]) -> Iterator[tuple[Document, str, str]]:
    """Yield the object that may have each of these fields, the field's name, and its path."""
    for *above, last in (field.split(".") for field in fields):
        for path, node in _nodes(spec, "spec", above):
            yield node, last, f"{path}.{last}"


def _nodes(node: Any, path: str, steps: Sequence[str]) -> Iterator[tuple[str, Document]]:
    """Yield the objects below `node` that these steps lead to, each with its path."""
    if not isinstance(node, dict):
        return
    if not steps:
        yield path, node
        return
    name, rest = steps[0].removesuffix("[]"), steps[1:]
    if name == steps[0]:
        yield from _nodes(node.get(name), f"{path}.{name}", rest)
    elif isinstance(items := node.get(name), list):
        for number, item in enumerate(items):
            yield from _nodes(item, f"{path}.{name}[{number}]", rest)


def _localise(node: Document, last: str, path: str, folder: Path, claims: Mapping[str, Path]) -> FieldError | None:
    source = node.get(last)
    if not isinstance(source, str):
        return None
    if (claimed := claim_path(source)) is not None:
        claim = claimed[0]
        if claim not in claims:
            advice = f"is on a claim of a cluster; add --claim {claim}=FOLDER with its folder on this machine"
            return FieldError(path, source, advice)
        below = source.removeprefix(f"pvc://{claim}").strip("/")
        node[last] = str(claims[claim] / below)
    elif _is_relative(source, folder):
        node[last] = str(folder.absolute() / Path(source).expanduser())
    return None


def _localise_code(node: Document, last: str, path: str, folder: Path) -> FieldError | None:
    """Make the path of a function's file absolute; a function of a module stays as it is."""
    named = node.get(last)
    if not isinstance(named, str):
        return None
    file, colon, function = named.rpartition(":")
    if not colon or not file.endswith(".py"):
        return None
    place = folder.absolute() / file
    if not place.is_file():
        return FieldError(path, named, f"must name a function of a Python file; {place} is no file")
    node[last] = f"{place}:{function}"
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
            refuse([FieldError("--claim", text, "must be NAME=FOLDER, for example data=/mnt/data")])
        place = Path(folder).expanduser().absolute()
        if not place.is_dir():
            refuse([FieldError("--claim", text, f"must name a folder; {place} is none")])
        claims[name] = place
    return claims
