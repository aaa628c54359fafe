"""Examples in docstrings: each gives what it shows."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [
    (root, file)
    for root in ("crds", "operator", "runtime", "bench")
    for file in sorted((ROOT / root).rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize(("root", "file"), SOURCES, ids=lambda value: getattr(value, "stem", value))
def test_docstring_examples_give_what_they_show(root: str, file: Path) -> None:
    name = ".".join(file.relative_to(ROOT / root).with_suffix("").parts)
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name), name):
        runner.run(test, out=report.append)
    assert not report, "".join(report)
    assert runner.tries, f"{file}: no example was found"
