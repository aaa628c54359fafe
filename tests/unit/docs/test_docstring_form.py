"""Docstring form: the first line of a module names it and says what it does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = ("crds", "operator", "runtime", "bench", "envs", "hack")
FORM = re.compile(r"(?=[`A-Za-z0-9])(?:`[^`]+`|[^.:`])+: \S.*\.$")
"""A name, which may have code in it; what the module does; the end of a sentence."""


def _first_line(path: Path) -> str | None:
    """The first line of a module's docstring; None for a module of nothing."""
    text = path.read_text(encoding="utf-8")
    if not text.strip():
        return None
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_begins_with_its_name_and_what_it_does(package: str) -> None:
    lines = {path: _first_line(path) for path in sorted((ROOT / package).rglob("*.py"))}
    assert len(lines) > 10, "the package has moved"
    wrong = {str(path.relative_to(ROOT)): line for path, line in lines.items() if line is not None}
    assert {path: line for path, line in wrong.items() if not FORM.match(line)} == {}


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("Trial: one job of a setting, played to its end.", True),
        ("`python -m hack.guard`: the command line of the guard.", True),
        ("vLLM engine: driven step by step in this process.", True),
        ("What a job did, as every system tells it.", False),
        ("Certificates. Bearer tokens: by openssl.", False),
        ("The mode (`mode: Asynchronous`), as it is.", False),
        ("Trial: one job of a setting", False),
        ("", False),
    ],
)
def test_the_form_of_a_first_line(line: str, right: bool) -> None:
    assert bool(FORM.match(line)) is right
