"""Sources: the product's modules as syntax trees, and the string literals in them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One module."""

    tree: ast.Module

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def enclosing(self) -> dict[ast.AST, ast.AST]:
        """The parent of every node."""
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def function_of(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node."""
        above = self.enclosing.get(node)
        while above is not None and not isinstance(above, Function):
            above = self.enclosing.get(above)
        return above


def read_sources(folders: Iterable[Path]) -> list[Source]:
    """Parse every module below the folders that exist."""
    return [
        Source(ast.parse(file.read_text(encoding="utf-8"), str(file)))
        for folder in folders
        for file in sorted(folder.rglob("*.py"))
    ]


def literals(source: Source) -> Iterator[str]:
    """Yield the strings of a module that are values: no docstrings, no parts of texts, no `__all__`."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not _is_prose(source, node):
            yield node.value


def is_word(text: str) -> bool:
    """Tell whether a text has the shape of a name on the wire: `MachineLost`."""
    return text.isascii() and text.isalnum() and text[:1].isupper() and not text.isupper()


def is_variable(text: str) -> bool:
    """Tell whether a text has the shape of an environment variable's name: `POD_NAME`."""
    return text.isascii() and text.isidentifier() and text.isupper() and "_" in text.strip("_")


def _is_prose(source: Source, node: ast.Constant) -> bool:
    above = source.enclosing[node]
    if isinstance(above, ast.Expr | ast.JoinedStr):
        return True
    while not isinstance(above, ast.stmt | ast.Module):
        above = source.enclosing[above]
    targets = above.targets if isinstance(above, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)
