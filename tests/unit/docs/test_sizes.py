"""The sizes of CONTRIBUTING.md are kept: what is over a limit today is listed, and no more of it may come.

A list only shrinks: a row that is no longer over its limit is removed, and a number is lowered.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath as Path

import pytest

from tests.support.paths import ROOT

LINES, ARGUMENTS, MODULES, CHARACTERS = 400, 6, 15, 70
"""Of a module; of a constructor; of a folder; of a test's name."""

LONG_TEST_MODULES = 24
"""Their number: tables of cases grow with what they cover."""
LARGE_FOLDERS = {
    "hack/chaos": 16,
    "runtime/rljob_runtime/protocols": 17,
    "runtime/rljob_runtime/rewards": 16,
    "runtime/rljob_runtime/scheduling/episodes": 17,
}
"""Without those of tests, which mirror the packages."""
LONG_NAME = re.compile(rf"\bdef test_\w{{{CHARACTERS - len('test_') + 1},}}")


@cache
def _modules() -> Mapping[str, str]:
    """The text of each module by its path."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()}


def _of_tests(name: str) -> bool:
    return name.startswith("tests/")


def _over(found: Mapping[str, int], limit: int) -> dict[str, int]:
    return {name: number for name, number in found.items() if number > limit}


def _check(found: Mapping[str, int], limit: int, listed: Mapping[str, int]) -> None:
    """Fail for what is over the limit and not listed, or larger than listed, and for a row that is not needed."""
    over = _over(found, limit)
    grown = {name: number for name, number in over.items() if number > listed.get(name, limit)}
    assert grown == {}, f"at most {limit}, or the number that is listed"
    assert set(listed) - set(over) == set(), "within the limit: remove these rows"


def _lines() -> dict[str, int]:
    return {name: len(text.splitlines()) for name, text in _modules().items()}


def test_a_module_has_at_most_400_lines() -> None:
    _check({name: lines for name, lines in _lines().items() if not _of_tests(name)}, LINES, {})


def test_no_more_test_modules_are_over_400_lines() -> None:
    over = _over({name: lines for name, lines in _lines().items() if _of_tests(name)}, LINES)
    assert len(over) <= LONG_TEST_MODULES, sorted(over.items())


def _constructors(module: str, text: str) -> Iterator[tuple[str, int]]:
    """Yield the constructors that a module writes out, each with the number of its arguments without `self`."""
    for owner in ast.walk(ast.parse(text)) if "def __init__(" in text else ():
        if isinstance(owner, ast.ClassDef):
            for method in owner.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    given = method.args
                    number = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1
                    yield f"{module}:{owner.name}", number


def test_a_constructor_has_at_most_six_arguments() -> None:
    own = (pair for name, text in _modules().items() if not _of_tests(name) for pair in _constructors(name, text))
    _check(dict(own), ARGUMENTS, {})


def test_a_folder_has_at_most_15_modules() -> None:
    parents = (Path(name).parent for name in _modules() if not _of_tests(name) and Path(name).name != "__init__.py")
    _check(Counter(map(str, parents)), MODULES, LARGE_FOLDERS)


def test_a_test_has_a_name_of_at_most_70_characters() -> None:
    # Most modules have none, as their texts tell sooner than their trees.
    texts = (text for name, text in _modules().items() if _of_tests(name) and LONG_NAME.search(text))
    trees = (ast.walk(ast.parse(text)) for text in texts)
    functions = (one for nodes in trees for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    long = [one.name for one in functions if one.name.startswith("test_") and len(one.name) > CHARACTERS]
    assert long == []


def test_what_tests_share_is_in_their_support() -> None:
    """Besides tests there are fixtures (`conftest.py`) and mutants only."""
    own = ("test_", "mutants", "conftest", "__init__")
    names = [name for name in _modules() if _of_tests(name) and not name.startswith("tests/support/")]
    assert [name for name in names if not Path(name).name.startswith(own)] == []


@pytest.mark.parametrize(
    ("found", "listed", "message"),
    [
        ({"a": 6, "b": 8}, {"b": 8}, None),
        ({"a": 7, "b": 8}, {"b": 8}, "at most 6"),
        ({"b": 9}, {"b": 8}, "at most 6"),
        ({"b": 6}, {"b": 8}, "remove"),
        ({}, {"b": 8}, "remove"),
    ],
    ids=["as listed", "a new one", "a larger one", "a smaller one", "one that is gone"],
)
def test_a_list_only_shrinks(found: dict[str, int], listed: dict[str, int], message: str | None) -> None:
    if message is None:
        _check(found, ARGUMENTS, listed)
    else:
        with pytest.raises(AssertionError, match=message):
            _check(found, ARGUMENTS, listed)


def test_every_argument_of_a_constructor_counts() -> None:
    text = "class A:\n    def __init__(self, a, /, b, *c, d=1, **e): ...\nclass B:\n    def f(self, a): ...\n"
    assert list(_constructors("m.py", text)) == [("m.py:A", 3)]
