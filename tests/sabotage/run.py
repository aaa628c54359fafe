"""Breaks the code one line at a time and demands that the tests notice.

Each mutant is applied to a copy of the tree, two at a time, and only the tests named with it run there. A mutant that
survives, a line that is no longer there, and a test that fails without the mutant are all failures of this run.

    python tests/sabotage/run.py [--canaries | NAME ...]
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from canaries import CANARIES
from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("crds", "operator", "runtime", "bench", "hack", "charts", "examples", "docs", "tests", "pyproject.toml")
TREES = 2
"""Copies of the tree, and so mutants tried at a time."""
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in tests/conftest.py, for the runs beside each other
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["pytest", "hypothesis", "numpy", "pydantic", "sympy", "torch", "transformers.models.llama.modeling_llama"]
)
"""Where the runs of pytest come from: the imports that cost most are made once."""
TESTS_FAILED = 1
"""pytest's exit status when tests ran and some failed; anything else means that the mutant broke the run itself."""


def main(names: list[str]) -> int:
    if names == ["--canaries"]:
        names = [name for subject in CANARIES.values() for name in subject]
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        print(f"sabotage: there is no mutant named {', '.join(sorted(unknown))}")
        return 2
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder, ThreadPoolExecutor(TREES) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(TREES):
            trees.put(_copy(Path(folder) / str(number)))
        untouched = pool.submit(_untouched, trees, tuple(sorted({test for mutant in chosen for test in mutant.tests})))
        caught = list(pool.map(lambda mutant: _caught(trees, mutant), chosen))
        healthy = untouched.result()
    survived = [mutant.name for mutant, was_caught in zip(chosen, caught, strict=True) if not was_caught]
    print(f"sabotages: {len(chosen) - len(survived)} caught, {len(survived)} survived")
    for name in survived:
        print(f"  survived: {name}")
    return 1 if survived or not healthy else 0


def _copy(tree: Path) -> Path:
    tree.mkdir()
    for part in COPIED:
        source = ROOT / part
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, tree / part)
    return tree


@contextmanager
def _one_of(trees: SimpleQueue[Path]) -> Iterator[Path]:
    tree = trees.get()
    try:
        yield tree
    finally:
        trees.put(tree)


def _untouched(trees: SimpleQueue[Path], tests: tuple[str, ...]) -> bool:
    with _one_of(trees) as tree:
        status, output = _pytest(tree, tests, limit=1800)
    if status != 0:
        print(f"{output[-4000:]}\nsabotage: these tests must pass without any mutant", flush=True)
        return False
    print("the tests pass without any mutant", flush=True)
    return True


def _caught(trees: SimpleQueue[Path], mutant: Mutant) -> bool:
    with _one_of(trees) as tree:
        return _caught_in(tree, mutant)


def _caught_in(tree: Path, mutant: Mutant) -> bool:
    path = tree / mutant.file
    original = path.read_text(encoding="utf-8")
    if original.count(mutant.line) != 1:
        print(f"{mutant.name}: the line is there {original.count(mutant.line)} times, wanted once: {mutant.line!r}")
        return False
    started = time.monotonic()
    path.write_text(original.replace(mutant.line, mutant.sabotage), encoding="utf-8")
    try:
        status, output = _pytest(tree, mutant.tests)
    finally:
        path.write_text(original, encoding="utf-8")
    seconds = f"{time.monotonic() - started:.0f} s"
    if status != TESTS_FAILED:
        print(f"SURVIVED {mutant.name} ({seconds})\n{output[-2000:]}", flush=True)
        return False
    failed = next((line for line in output.splitlines() if line.startswith("FAILED ")), "")
    print(f"caught   {mutant.name} ({seconds}): {failed.partition('::')[2]}", flush=True)
    return True


def _pytest(tree: Path, tests: tuple[str, ...], limit: float = 600) -> tuple[int, str]:
    output = tree / "pytest.log"
    run = FORKS.Process(target=_session, args=(tree, tests, output))
    run.start()
    run.join(limit)
    if run.exitcode is None:
        run.kill()
        run.join()
    return run.exitcode or 0, output.read_text(encoding="utf-8", errors="replace")


def _session(tree: Path, tests: tuple[str, ...], output: Path) -> None:
    """The child's part. Nothing of ours was imported before the fork, so the tree's files are what runs."""
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    packages = [str(tree / part) for part in ("crds", "operator", "runtime", "bench")]
    # The copy's packages come before the editable install. No bytecode: a mutant can keep a file's size and second.
    sys.path[:0] = [str(tree), *packages]
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    import pytest

    sys.exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
