"""A mutant's tests may take a multiple of what they take without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.mutants.limits import LEAST, MOST, TIMES, limit, measured

SECONDS = {
    "tests/unit/a/test_b.py::test_c": 0.1,
    "tests/unit/a/test_b.py::test_d[1]": 2.0,
    "tests/unit/a/test_b.py::test_d[2]": 3.0,
    "tests/unit/a/test_b.py::TestE::test_f": 1.5,
    "tests/unit/a/test_bb.py::test_c": 50.0,
    "tests/unit/a/test_slow.py::test_c[1]": 0.1,
}
SOURCES = {"test_b.py": "", "test_bb.py": "", "test_slow.py": "from tests.support.rows import slow\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with the test files, one of which has slow rows."""
    folder = tmp_path / "tests/unit/a"
    folder.mkdir(parents=True)
    for name, text in SOURCES.items():
        (folder / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        (("tests/unit/a/test_b.py::test_c",), LEAST),
        (("tests/unit/a/test_b.py::test_d[1]",), TIMES * 2.0),
        (("tests/unit/a/test_b.py::test_d",), TIMES * 3.0),
        (("tests/unit/a/test_b.py::TestE",), TIMES * 1.5),
        (("tests/unit/a/test_b.py::test_c", "tests/unit/a/test_b.py::TestE::test_f"), TIMES * 1.5),
        (("tests/unit/a/test_b.py",), TIMES * 3.0),
        (("tests/unit/a/test_bb.py",), MOST),
        (("tests/unit/a/test_slow.py::test_c[1]",), LEAST),
        (("tests/unit/a/test_slow.py::test_c",), MOST),
        (("tests/unit/a/test_slow.py",), MOST),
        (("tests/unit/a/test_b.py::test_c", "tests/unit/a/test_b.py::test_slow"), MOST),
        ((), MOST),
    ],
)
def test_the_longest_row_counts_and_one_that_did_not_run_has_the_most(
    root: Path, tests: tuple[str, ...], expected: float
) -> None:
    assert limit(tests, SECONDS, root) == expected


def test_results_name_tests_as_arguments_of_pytest_do(tmp_path: Path) -> None:
    cases = "".join(
        f'<testcase classname="{classname}" name="{name}" time="{seconds}"/>'
        for classname, name, seconds in (
            ("tests.unit.a.test_b", "test_d[1]", 2.0),
            ("tests.unit.a.test_b.TestE", "test_f", 1.5),
        )
    )
    file = tmp_path / "unit.xml"
    file.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert measured(file) == {
        "tests/unit/a/test_b.py::test_d[1]": 2.0,
        "tests/unit/a/test_b.py::TestE::test_f": 1.5,
    }


def test_without_results_every_test_has_the_most(root: Path) -> None:
    assert limit(("tests/unit/a/test_b.py::test_c",), measured(root / "unit.xml"), root) == MOST
