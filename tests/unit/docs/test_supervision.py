"""Each thread and task of the project is in docs/internals/coordinator/supervision.md, with who notices its end."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

SOURCES = (
    ROOT / "envs/rljob_env",
    ROOT / "operator/rljob_kube",
    ROOT / "operator/rljob_operator",
    ROOT / "runtime/rljob_runtime",
)
PAGE = ROOT / "docs/internals/coordinator/supervision.md"
BEGINS = {"Thread", "Timer", "create_task", "ensure_future", "run_coroutine_threadsafe"}
"""Names of calls by which something runs on beside its caller. A TaskGroup's raise by themselves, and so do executors'
futures for their awaiters."""


def _left_out(path: Path) -> bool:
    return "simulator" in path.parts or path.name.startswith("bench")


def _beginnings(node: ast.AST, names: tuple[str, ...] = ()) -> Iterator[str]:
    """The functions, as `Class.method`, in which something begins."""
    for child in ast.iter_child_nodes(node):
        inside = names
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (*names, child.name)
        if isinstance(child, ast.Call):
            called = child.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
            group = isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "group"
            if name in BEGINS and not group:
                yield ".".join(names)
        yield from _beginnings(child, inside)


def _in_the_sources() -> set[str]:
    return {
        f"{path.relative_to(source)}:{function}"
        for source in SOURCES
        for path in source.rglob("*.py")
        if not _left_out(path)
        # Most modules name none of the calls, as their texts tell sooner than their trees.
        for text in [path.read_text()]
        if any(name in text for name in BEGINS)
        for function in _beginnings(ast.parse(text))
    }


def _on_the_page() -> list[tuple[str, str]]:
    """(function, what happens at its end)."""
    rows = re.findall(r"^\| `([^`]+\.py:[^`]+)` \|[^|]*\|([^|]*)\|$", PAGE.read_text(), re.MULTILINE)
    return [(where, end.strip()) for where, end in rows]


def test_the_parser_sees_what_begins() -> None:
    source = """
class A:
    def f(self):
        threading.Thread(target=g).start()
        async def inner():
            asyncio.create_task(x())
async def g():
    async with asyncio.TaskGroup() as group:
        group.create_task(x())
"""
    assert list(_beginnings(ast.parse(source))) == ["A.f", "A.f.inner"]


def test_each_thread_and_task_is_on_the_page_with_its_end() -> None:
    known = _on_the_page()
    assert {where for where, _ in known} == _in_the_sources()
    assert len({where for where, _ in known}) == len(known)
    assert [where for where, end in known if not end] == []
