"""Fragments: how `before` and `after` of a mutant are read, and the places in a syntax tree that `before` fits.

A fragment is an expression, statements that follow each other, keyword arguments, or entries of a dictionary.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .mutant import BadMutant
from .targets import inside


@dataclass(frozen=True)
class Place:
    """Where a fragment stands in a source."""

    begin: tuple[int, int]
    """Line from 1, column from 0 in bytes of UTF-8, as in `ast`."""
    end: tuple[int, int]
    text: str = ""
    """What to put there."""
    removed: bool = False
    """An entry goes, and with it the comma behind it."""
    replace: Callable[[], None] = lambda: None
    """Replaces the nodes in the tree."""


def places(scope: ast.AST, before: str, after: str) -> list[Place]:
    """Return every place in a scope that `before` fits. Raises `BadMutant` for texts that are no fragments."""
    if not before.strip():
        raise BadMutant("`before` is empty: an expression, statements or entries would be right")
    old, new = _expression(before), _expression(after)
    if old is not None and new is not None:
        return list(_expressions(scope, old, new, after))
    found: list[Place] = []
    read = False
    for entries, others in ((_keywords(before), _keywords(after)), (_items(before), _items(after))):
        if entries is not None and others is not None:
            found += _entries(scope, entries, others, after)
            read = True
    block, instead = _statements(before), _statements(after)
    if block and instead is not None:
        found += _blocks(scope, block, instead, after)
        read = True
    if not read:
        raise BadMutant(f"{before!r} and {after!r} are neither expressions nor statements nor entries, or not both")
    return found


def text_places(scope: ast.AST, source: str, before: str, after: str) -> list[Place]:
    """Return every string in a scope that has a text in it, as the source spells it, as often as it has it."""
    found = []
    for node in inside(scope):
        if isinstance(node, ast.expr) and _is_string(node):
            string = ast.get_source_segment(source, node) or ""
            changed = string.replace(before, after)
            if before in string and not _is_string(_expression(changed)):
                raise BadMutant(f"with {after!r} the string in line {node.lineno} is no string any more")
            found += [Place(*_span([node]), changed)] * string.count(before)
    return found


def _is_string(node: ast.expr | None) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _expressions(scope: ast.AST, old: ast.expr, new: ast.expr, text: str) -> Iterator[Place]:
    wanted = ast.dump(old)
    for holder in inside(scope):
        if isinstance(holder, ast.JoinedStr):
            continue
        for field, value in ast.iter_fields(holder):
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                if type(node) is type(old) and ast.dump(node) == wanted:
                    siblings = value if isinstance(value, list) else None
                    # In parentheses it binds as one value, whatever stands around it.
                    replace = _replacing(holder, field, siblings, index, new)
                    yield Place(
                        *_span([node]), f"({text.strip()}\n)" if "#" in text else f"({text.strip()})", replace=replace
                    )


def _replacing(
    holder: ast.AST, field: str, siblings: list[ast.AST] | None, index: int, new: ast.AST
) -> Callable[[], None]:
    def replace() -> None:
        if siblings is None:
            setattr(holder, field, new)
        else:
            siblings[index] = new

    return replace


def _blocks(scope: ast.AST, old: list[ast.stmt], new: list[ast.stmt], text: str) -> Iterator[Place]:
    wanted = _dump(old)
    for holder in inside(scope):
        for _, value in ast.iter_fields(holder):
            if not (isinstance(value, list) and value and isinstance(value[0], ast.stmt)):
                continue
            for index in range(len(value) - len(old) + 1):
                window = slice(index, index + len(old))
                if type(value[index]) is type(old[0]) and _dump(value[window]) == wanted:
                    begin, end = _span(value[window])
                    indented = textwrap.indent(_dedented(text), " " * begin[1]).lstrip()
                    yield Place(begin, end, indented, replace=_putting([value], window, [new]))


def _entries(scope: ast.AST, old: list[list[ast.AST]], new: list[list[ast.AST]], text: str) -> Iterator[Place]:
    """Find keyword arguments, which are one list of a call's, or entries, which are two lists of a dictionary's."""
    wanted = [_dump(nodes) for nodes in old]
    for holder in inside(scope):
        if isinstance(holder, ast.Call) and len(old) == 1:
            lists: list[list[ast.AST]] = [holder.keywords]  # type: ignore[list-item]
        elif isinstance(holder, ast.Dict) and len(old) == 2:
            lists = [holder.keys, holder.values]  # type: ignore[list-item]
        else:
            continue
        for index in range(len(lists[0]) - len(old[0]) + 1):
            window = slice(index, index + len(old[0]))
            if [_dump(nodes[window]) for nodes in lists] == wanted:
                span = _span([lists[0][window][0], lists[-1][window][-1]])
                yield Place(
                    *span,
                    _dedented(text).removesuffix(","),
                    removed=not text.strip(),
                    replace=_putting(lists, window, new),
                )


def _putting(lists: Sequence[list[ast.AST]], window: slice, new: Sequence[Sequence[ast.AST]]) -> Callable[[], None]:
    def replace() -> None:
        for nodes, others in zip(lists, new, strict=True):
            nodes[window] = others

    return replace


def _span(nodes: Sequence[ast.AST]) -> tuple[tuple[int, int], tuple[int, int]]:
    first, last = nodes[0], nodes[-1]
    assert isinstance(first, ast.expr | ast.stmt | ast.keyword)
    assert isinstance(last, ast.expr | ast.stmt | ast.keyword)
    line = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", []))])
    return (line, first.col_offset), (last.end_lineno or 0, last.end_col_offset or 0)


def _dump(nodes: Sequence[ast.AST | None]) -> list[str]:
    return [ast.dump(node) if node is not None else "" for node in nodes]


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(f"({text.strip()}\n)", mode="eval").body if text.strip() else None
    except SyntaxError:
        return None


def _statements(text: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(_dedented(text)).body
    except SyntaxError:
        return None


def _keywords(text: str) -> list[list[ast.AST]] | None:
    try:
        call = ast.parse(f"f({text}\n)", mode="eval").body
    except SyntaxError:
        return None
    return [[*call.keywords]] if isinstance(call, ast.Call) and not call.args else None


def _items(text: str) -> list[list[ast.AST]] | None:
    try:
        made = ast.parse(f"{{{text}\n}}", mode="eval").body
    except SyntaxError:
        return None
    return [[*made.keys], [*made.values]] if isinstance(made, ast.Dict) and None not in made.keys else None  # type: ignore[list-item]


def _dedented(text: str) -> str:
    return textwrap.dedent(text).strip()
