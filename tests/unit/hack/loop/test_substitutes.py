"""A test file of which every row is slow names the one that `make test` runs in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.loop.substitutes import problems

QUICK = "def test_it(): ..."
MISSING = "every row is slow: name in a comment here the test file that `make test` runs in its place"


def test_every_file_without_a_quick_row_names_its_substitute() -> None:
    assert problems() == []


def found(folder: Path, text: str) -> list[str]:
    """Return the problems of a file with this text, beside a quick and a slow one."""
    texts = {
        "unit/test_a.py": text,
        "unit/test_quick.py": QUICK,
        "e2e/test_slow.py": f"pytestmark = pytest.mark.slow  # tests/unit/test_quick.py\n{QUICK}",
    }
    for name, content in texts.items():
        (folder / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tests" / name).write_text(content)
    return problems(folder)


@pytest.mark.parametrize(
    "text",
    [
        QUICK,
        "# mark.slow\ndef test_it(): ...",
        "@pytest.mark.slow\ndef test_it(): ...\nasync def test_quick(): ...",
        "class TestIt:\n    @pytest.mark.slow\n    def test_it(self): ...\n    def test_quick(self): ...",
        "@pytest.mark.parametrize('a', [1, *slow(2)])\ndef test_it(a): ...",
        "@pytest.mark.parametrize('a', [pytest.param(1, marks=mark.slow), 2])\ndef test_it(a): ...",
        "pytestmark = pytest.mark.slow  # in make test: tests/unit/test_quick.py\ndef test_it(): ...",
        "@pytest.mark.slow  # tests/unit/test_quick.py\ndef test_it(): ...",
        "pytestmark = [\n    mark.engine,\n    mark.slow,  # tests/unit/test_quick.py\n]\ndef test_it(): ...",
        "@pytest.mark.parametrize('a', slow(2))  # tests/unit/test_quick.py\ndef test_it(a): ...",
    ],
)
def test_a_quick_row_or_the_name_of_a_substitute_is_enough(text: str, tmp_path: Path) -> None:
    assert found(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pytestmark = pytest.mark.slow\ndef test_it(): ...", f"1: {MISSING}"),
        ("pytestmark = [pytest.mark.slow]  # minutes\ndef test_it(): ...", f"1: {MISSING}"),
        ("# tests/unit/test_quick.py\n@pytest.mark.slow\ndef test_it(): ...", f"2: {MISSING}"),
        ("class TestIt:\n    @pytest.mark.slow\n    async def test_it(self): ...", f"2: {MISSING}"),
        ("@pytest.mark.parametrize('a', slow(2))\ndef test_it(a): ...", f"1: {MISSING}"),
        ("@pytest.mark.parametrize('a', [*slow(2)])\ndef test_it(a): ...", f"1: {MISSING}"),
        (
            "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.slow)])\ndef test_it(a): ...",
            f"1: {MISSING}",
        ),
        (
            "pytestmark = pytest.mark.slow  # tests/unit/test_gone.py\ndef test_it(): ...",
            "1: tests/unit/test_gone.py does not exist",
        ),
        (
            "pytestmark = pytest.mark.slow  # tests/e2e/test_slow.py\ndef test_it(): ...",
            "1: tests/e2e/test_slow.py is slow too",
        ),
    ],
)
def test_a_file_without_a_quick_row_or_a_substitute_is_found(text: str, wrong: str, tmp_path: Path) -> None:
    assert found(tmp_path, text) == [f"tests/unit/test_a.py:{wrong}"]


def test_each_slow_test_of_such_a_file_names_one(tmp_path: Path) -> None:
    text = "@pytest.mark.slow\ndef test_a(): ...\n@pytest.mark.slow  # tests/unit/test_quick.py\ndef test_b(): ..."
    assert found(tmp_path, text) == [f"tests/unit/test_a.py:1: {MISSING}"]
