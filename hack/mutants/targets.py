"""Targets: the part of a syntax tree that a mutant's target names, and the file that it stands in."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from .mutant import BadMutant

ROOTS = ("crds", "operator", "runtime", "bench", "envs", ".")
"""The folders that modules are found in."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def file_of(module: str, root: Path) -> Path:
    """Return the file of a module, relative to the root of the tree."""
    path = Path(*module.split("."))
    for folder in ROOTS:
        for file in (Path(folder) / path.with_suffix(".py"), Path(folder) / path / "__init__.py"):
            if (root / file).is_file():
                return file
    raise BadMutant(f"there is no module {module} below {', '.join(ROOTS)}")


def find(tree: ast.Module, name: str) -> list[ast.AST]:
    """Return what a qualified name stands for: several nodes if it is defined several times, as a property is."""
    if not name:
        return [tree]
    found: list[ast.AST] = [tree]
    for part in name.split("."):
        found = [node for scope in found for node in _own(scope) if part in _names(node)]
    if not found:
        raise BadMutant(f"there is no {name}: a function, a class, or a name that is assigned outside of functions")
    return found


def inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Walk a target. A class or a module comes without its functions, and a module without its classes."""
    yield scope
    apart: tuple[type[ast.AST], ...] = ()
    if isinstance(scope, ast.ClassDef):
        apart = FUNCTIONS
    elif isinstance(scope, ast.Module):
        apart = (*FUNCTIONS, ast.ClassDef)
    waiting: list[ast.AST] = [scope]
    while waiting:
        children = [child for child in ast.iter_child_nodes(waiting.pop()) if not isinstance(child, apart)]
        yield from children
        # Python 3.11 gives wrong places to what stands inside of an f-string.
        waiting += [child for child in children if not isinstance(child, ast.JoinedStr)]


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Walk the definitions that belong to a scope directly, also those under an ``if`` or a ``with``."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield from _own(child)


def _names(node: ast.AST) -> Iterable[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return (node.name,)
        case ast.Assign():
            names = [one for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
            return [one.id for one in names if isinstance(one.ctx, ast.Store)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
    return ()
