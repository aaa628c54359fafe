"""Imports: the import graph of the product, of hack/ and of the tests, and what git says has changed."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp

from .choice import Tree, module_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("rljob_api", "rljob_bench", "rljob_env", "rljob_kube", "rljob_operator", "rljob_runtime")
OTHER_KIND = re.compile(r"^pytestmark = \[?\s*[^#\n]*\bmark\.(cluster|realnodes|engine|gpu)\b", re.MULTILINE)
"""Matches a file without unit tests: in a list with a line for each marker, the kind comes first."""
CACHE = ROOT / "build" / "loop" / "imports"


def tree() -> Tree:
    """Read the graph. The product's comes from grimp, as import-linter's layers do."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=str(CACHE))
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        importers[module] |= graph.find_modules_that_directly_import(module)
    files = {
        name: file
        for folder in ("hack", "tests")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if (name := module_of(str(file.relative_to(ROOT)))) is not None
    }
    known = graph.modules | files.keys()
    for name, file in files.items():
        for imported in _imported(name, file, known):
            importers[imported].add(name)
    tests = frozenset(name for name in files if name.rpartition(".")[2].startswith("test_"))
    units = frozenset(name for name in tests if not OTHER_KIND.search(files[name].read_text(encoding="utf-8")))
    return Tree({module: frozenset(names) for module, names in importers.items()}, tests, units)


def changed(base: str) -> set[str]:
    """List the paths that differ from the commit `base`, with the files that git does not know yet."""
    return {
        path
        for command in (("diff", "--name-only", base), ("ls-files", "--others", "--exclude-standard"))
        for path in subprocess.run(
            ["git", *command], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.splitlines()
    }


def path_of(test: str) -> str:
    """Return the file of a test module."""
    return f"{test.replace('.', '/')}.py"


def _imported(name: str, file: Path, known: set[str]) -> Iterator[str]:
    """Yield the modules that a file of hack/ or tests/ imports anywhere."""
    folder = name if file.name == "__init__.py" else name.rpartition(".")[0]
    if name.startswith("tests.") and file.name != "conftest.py":
        # Not the one of all tests: what it imports would seem to concern every test.
        parts = folder.split(".")
        yield from {".".join([*parts[:end], "conftest"]) for end in range(2, len(parts) + 1)} & known
    for node in ast.walk(ast.parse(file.read_bytes())):
        yield from (wanted for wanted in _names(node, folder) if wanted in known)


def _names(node: ast.AST, folder: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = folder.split(".")[: len(folder.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
