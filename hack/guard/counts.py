"""Counts: how many tests pytest collects, by marker, and how many mutants there are."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

MARKERS = ("cluster", "realnodes", "engine", "all_minors", "slow", "gpu")
_MUTANT = "Mutant"
_HERE = str(Path(__file__).resolve().parents[2])


class NotCollected(Exception):
    """pytest cannot collect the tests; the message has what it said."""


def count_tests(root: Path) -> dict[str, int]:
    """Let pytest collect every test in a process of its own. Raises `NotCollected`."""
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        file = Path(folder) / "counts.json"
        command = [sys.executable, "-m", __name__, str(file)]
        paths = os.pathsep.join(filter(None, (_HERE, os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotCollected(f"pytest cannot collect the tests:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        found: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return found


def count_by_marker(tests: Iterable[frozenset[str]]) -> dict[str, int]:
    """Count tests, each given by its markers: all, those of each marker, and unit tests, which need nothing."""
    found: Counter[str] = Counter(dict.fromkeys(("all", "unit", *MARKERS), 0))
    for markers in tests:
        found["all"] += 1
        found.update(markers.intersection(MARKERS))
        found["unit"] += not markers & {"cluster", "realnodes", "engine"}
    return dict(found)


def count_mutants(root: Path) -> int:
    """Count the mutants that files of this name list, without running them."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted((root / "tests").rglob("mutants*.py"))]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sum(isinstance(one, ast.Name) and one.id == _MUTANT for one in calls)


class _Collection:
    """A plugin of pytest that keeps the markers of every test."""

    def __init__(self) -> None:
        self.tests: list[frozenset[str]] = []

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Before any is deselected: tests of other minors run only where `-m` names them, and count here."""
        self.tests.append(frozenset(mark.name for mark in item.iter_markers()))


def main(file: Path) -> int:
    """Collect in this process and write the counts to a file. Exit status: pytest's."""
    collection = _Collection()
    status = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider"], plugins=[collection])
    file.write_text(json.dumps(count_by_marker(collection.tests)), encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
