"""Substitutes: the test that `make test` runs in place of a test file of which every row is slow.

A comment on the line of the marker `slow` names it: ``# in make test: tests/unit/relay/test_chain.py``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .imports import ROOT

_NAMED = re.compile(r"#.*?\b(tests/[\w/]+/test_\w+\.py)\b")
_TEST = (ast.FunctionDef, ast.AsyncFunctionDef)


def problems(root: Path = ROOT) -> list[str]:
    """Return what is wrong in test files without a quick row, a line each."""
    marks = {path: list(_slow_marks(path)) for path in sorted((root / "tests").rglob("test_*.py"))}
    slow = {path for path, found in marks.items() if found}
    return [
        f"{path.relative_to(root)}:{line}: {what}"
        for path in sorted(slow)
        for line, comment in marks[path]
        if (what := _problem(comment, root, slow)) is not None
    ]


def _problem(line: str, root: Path, slow: set[Path]) -> str | None:
    """Return what is wrong with the marker's line."""
    if (named := _NAMED.search(line)) is None:
        return "every row is slow: name in a comment here the test file that `make test` runs in its place"
    substitute = root / named[1]
    if not substitute.is_file():
        return f"{named[1]} does not exist"
    return f"{named[1]} is slow too" if substitute in slow else None


def _slow_marks(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of the markers by which every test of a file is slow, with their numbers; none if one is not."""
    text = path.read_text(encoding="utf-8")
    if "slow" not in text:
        return
    module, lines = ast.parse(text), text.splitlines()
    of_module = [node for node in module.body if _assigns_marks(node) and _is_slow(node)]
    tests = [node for node in ast.walk(module) if isinstance(node, _TEST) and node.name.startswith("test_")]
    of_tests = [next((one for one in test.decorator_list if _is_slow_mark(one)), None) for test in tests]
    marks = of_module or of_tests
    if None not in marks:
        for mark in marks:
            yield mark.lineno, "\n".join(lines[mark.lineno - 1 : mark.end_lineno])


def _assigns_marks(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]


def _is_slow_mark(decorator: ast.expr) -> bool:
    """Say whether a decorator makes each row slow: the marker itself, or a list of values that all have it."""
    if not isinstance(decorator, ast.Call):
        return _is_slow(decorator)
    if not ast.unparse(decorator.func).endswith("mark.parametrize"):
        return False
    keywords = {keyword.arg: keyword.value for keyword in decorator.keywords}
    values = decorator.args[1] if len(decorator.args) > 1 else keywords.get("argvalues")
    if values is None:
        return False
    rows = values.elts if isinstance(values, ast.List) else [values]
    return bool(rows) and all(_is_slow_row(row) for row in rows)


def _is_slow_row(row: ast.expr) -> bool:
    """Say whether a value of `parametrize`, or a part of its list, has the marker."""
    call = row.value if isinstance(row, ast.Starred) else row
    if not isinstance(call, ast.Call):
        return False
    marks = [keyword.value for keyword in call.keywords if keyword.arg == "marks"]
    return ast.unparse(call.func) == "slow" or any(_is_slow(mark) for mark in marks)


def _is_slow(node: ast.AST) -> bool:
    """Say whether a marker, or a list of them, is `slow`."""
    return any(isinstance(one, ast.Attribute) and ast.unparse(one).endswith("mark.slow") for one in ast.walk(node))
