"""Trees: copies of the working tree, in which mutants are applied and tests run.

The working tree itself is never changed, so an interrupted run leaves nothing to restore.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from hack.resumable import TESTED

from .application import apply
from .limits import MOST, limit, measured
from .mutant import Mutant
from .targets import file_of

COPIED = TESTED
PACKAGES = ("crds", "operator", "runtime", "bench", "envs")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in tests/conftest.py, for concurrent runs
FORKS = multiprocessing.get_context("forkserver")
"""Where the runs of pytest come from: the imports that cost most are made once."""
PRELOADED = ("pytest", "hypothesis", "numpy", "pydantic", "sympy", "torch", "transformers.models.llama.modeling_llama")
SECONDS = 600.0
"""Limit of one mutant's tests."""
KILLED = -9
RESULTS = "build/loop/unit.xml"
"""pytest's results of the last unit tests."""


class Trees:
    """Copies of the tree below a folder. Each serves one run at a time."""

    def __init__(self, root: Path, folder: Path, number: int, preloaded: Sequence[str] = PRELOADED) -> None:
        FORKS.set_forkserver_preload(list(preloaded))
        self._root, self._seconds = root, measured(root / RESULTS)
        self._free: SimpleQueue[Path] = SimpleQueue()
        for index in range(number):
            self._free.put(_copy(root, folder / str(index)))

    def test(self, tests: tuple[str, ...], seconds: float) -> tuple[int, str]:
        """Run tests without a mutant, for so many seconds at most. Returns pytest's exit status and output."""
        with self._one() as tree:
            return _pytest(tree, tests, seconds, MOST)

    def test_with(self, mutant: Mutant) -> tuple[int, str]:
        """Run a mutant's tests with the mutant. Raises `BadMutant` if it does not fit the code."""
        with self._one() as tree:
            path = tree / file_of(mutant.module, tree)
            original = path.read_text(encoding="utf-8")
            path.write_text(apply(mutant, original), encoding="utf-8")
            try:
                return _pytest(tree, mutant.tests, SECONDS, limit(mutant.tests, self._seconds, self._root))
            finally:
                path.write_text(original, encoding="utf-8")

    def stop(self) -> None:
        """End the runs that are going on."""
        for run in multiprocessing.active_children():
            run.kill()

    @contextmanager
    def _one(self) -> Iterator[Path]:
        tree = self._free.get()
        try:
            yield tree
        finally:
            self._free.put(tree)


def _copy(root: Path, tree: Path) -> Path:
    tree.mkdir()
    for part in COPIED:
        source = root / part
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, tree / part)
    return tree


def _pytest(tree: Path, tests: tuple[str, ...], seconds: float, each: float) -> tuple[int, str]:
    output = tree / "pytest.log"
    run = FORKS.Process(target=_session, args=(tree, tests, output, each))
    run.start()
    run.join(seconds)
    if run.exitcode is None:
        run.kill()
        run.join()
    status = KILLED if run.exitcode is None else run.exitcode
    return status, output.read_text(encoding="utf-8", errors="replace")


def _session(tree: Path, tests: tuple[str, ...], output: Path, each: float) -> None:
    """Run the tests in the child. It imported nothing of the product before the fork, so the tree's files run."""
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    packages = [str(tree / part) for part in PACKAGES]
    # The copy's packages come before the editable install. No bytecode: a mutant can keep a file's size and second.
    sys.path[:0] = [str(tree), *packages]
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    import pytest
    from hypothesis import Phase, settings

    # Any example that fails catches a mutant: the search for the smallest one would take most of a property's time.
    settings.register_profile("mutants", deadline=None, database=None, phases=(Phase.explicit, Phase.generate))
    drawn = ("--hypothesis-profile=mutants", "--hypothesis-seed=0")
    sys.exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *drawn, f"--timeout={each:.0f}", *tests])))
