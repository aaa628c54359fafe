"""Which test files a part of the loop collects."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.loop import marked, suites


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    texts = {
        "unit/test_a.py": "def test_it(): ...",
        "unit/test_b.py": "pytestmark = pytest.mark.cluster",
        "unit/test_c.py": "pytestmark = [pytest.mark.realnodes, pytest.mark.clusters]",
        "unit/test_d.py": "pytestmark = pytest.mark.slow  # no pytest.mark.engine\n@pytest.mark.engine\n",
        "unit/test_e.py": "pytestmark = [\n    pytest.mark.engine,\n    pytest.mark.slow,  # why\n]",
        "unit/test_f.py": "pytestmark = [\n    pytest.mark.slow,  # not mark.engine\n]",
        "e2e/conftest.py": "pytest.mark.cluster",
    }
    for name, text in texts.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text)
    return tmp_path


def test_files_with_a_marker_name_it(tree: Path) -> None:
    assert marked.files("cluster", tree) == ("tests/unit/test_b.py",)
    assert marked.files("realnodes", tree) == ("tests/unit/test_c.py",)
    assert marked.files("engine", tree) == tuple(f"tests/unit/test_{name}.py" for name in "def")


def test_a_file_is_left_out_of_unit_tests_if_all_its_tests_have_a_part(tree: Path) -> None:
    found = [path.stem for path in sorted((tree / "tests/unit").iterdir()) if marked.is_of_a_part(path)]
    assert found == ["test_b", "test_c", "test_e"]


@pytest.mark.parametrize(
    ("file", "markers", "found"),
    [
        ("test_a", set(), None),
        ("test_a", {"slow"}, None),
        ("test_a", {"slow", "engine"}, "engine"),
        ("test_b", {"cluster"}, None),
        ("test_b", {"cluster", "realnodes"}, "realnodes"),
        ("test_c", {"realnodes"}, None),
    ],
)
def test_a_test_that_no_part_would_collect_is_found(
    tree: Path, file: str, markers: set[str], found: str | None
) -> None:
    assert marked.hidden(f"tests/unit/{file}.py", markers.__contains__, tree) == found


def test_each_part_with_a_marker_collects_its_files_only() -> None:
    parts = {part.name: part.command for part in suites.everything({})}
    for name, marker in (("cluster", "cluster"), ("real nodes", "realnodes"), ("engine", "engine")):
        paths = tuple(word for word in parts[name] if word.startswith("tests"))
        assert paths == marked.files(marker), name
        assert 5 < len(paths) < 100
    assert parts["unit"][-1] == "tests"
