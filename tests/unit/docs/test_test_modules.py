"""No test imports another one, and only pytest loads a `conftest.py`: what they share is in `tests/support`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

TESTS = re.compile(r"(?:tests\.|\.)(?:.*\.)?(?:test_\w*|conftest)|conftest")
"""Matches the name of a module that only pytest loads, `.` for a relative one. Others have a `test_utils` too."""
IN_TEXT = re.compile(
    r"^\s*(?:from|import)\s+tests\.(?:\w+\.)*(?:\w+\s+import\s+)?(?:test_\w+|conftest)\b", re.MULTILINE
)
"""Matches such an import in the code that a test gives to a process."""
OWN = "tests/unit/docs/test_test_modules.py"
"""The examples below are such texts."""


def _imports(text: str) -> Iterator[str]:
    """Yield the modules of tests and of fixtures that a file imports, and the imports of them in its texts."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if TESTS.fullmatch(alias.name))
            case ast.ImportFrom(module=module, names=names, level=level):
                base = f"{'.' * level}{module or ''}"
                wanted = [base, *(f"{base.rstrip('.')}.{alias.name}" for alias in names)]
                yield from (name for name in wanted if TESTS.fullmatch(name))
            case ast.Constant(value=str(value)) if found := IN_TEXT.search(value):
                yield found[0].strip()


def test_no_test_imports_another_or_a_conftest() -> None:
    files = {str(file.relative_to(ROOT)): file for file in (ROOT / "tests").rglob("*.py")}
    assert len(files) > 500
    found = {name: [*_imports(file.read_text(encoding="utf-8"))] for name, file in files.items() if name != OWN}
    assert {name: modules for name, modules in found.items() if modules} == {}


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import tests.unit.relay.test_chain", ["tests.unit.relay.test_chain"]),
        ("from tests.unit.relay.test_chain import some", ["tests.unit.relay.test_chain"]),
        ("from tests.unit.relay import test_chain as other", ["tests.unit.relay.test_chain"]),
        ("from .test_chain import some", [".test_chain"]),
        ("from . import (\n    helpers,\n    test_chain,\n)", [".test_chain"]),
        ("def f():\n    import conftest", ["conftest"]),
        ("from tests.conftest import hosts", ["tests.conftest"]),
        ("from tests import conftest", ["tests.conftest"]),
        ("run('import os\\nfrom tests.unit.test_a import b')", ["from tests.unit.test_a"]),
        ("run(f'from tests.unit import test_a; {b}')", ["from tests.unit import test_a"]),
        ("from tests.support.relay import tests_of, chain\nfrom aiohttp.test_utils import unused_port\n", []),
        ("'''A test that imports nothing from test_a.'''\ndef test_b(): ...", []),
    ],
)
def test_an_import_is_found_in_every_form(text: str, modules: list[str]) -> None:
    assert [*_imports(text)] == modules
