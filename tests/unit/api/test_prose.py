"""The classes of the API are described by noun phrases: `kubectl explain` prints them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

CLAUSES = re.compile(r"(What|Whether|How|Which|Who|Where|When|Why)\b")
MODULES = sorted((ROOT / "crds/rljob_api").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "crds")))
def test_no_class_is_described_by_a_clause(path: Path) -> None:
    classes = [one for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(one, ast.ClassDef)]
    assert [one.name for one in classes if CLAUSES.match(ast.get_docstring(one) or "")] == []
