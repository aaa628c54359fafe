"""Choice: which test files a change needs, the nearest first, as many as fit into a budget of seconds.

A test needs to run when it imports a changed module, directly or through others. An import of everything (the command
line) makes nearly every test depend on nearly every module: the order matters as much as the selection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

UNKNOWN_SECONDS = 2.0
"""Seconds of a test file that was never measured."""

FOLDERS = (
    ("crds/", ("tests.api", "tests.chart")),
    ("bench/", ("tests.simulation", "tests.local")),
    ("runtime/rljob_runtime/perf_model/", ("tests.enginemodel",)),
    ("runtime/rljob_runtime/simulator/", ("tests.simulation",)),
    ("charts/", ("tests.chart",)),
    ("examples/", ("tests.chart", "tests.api")),
    ("docs/", ("tests.docs",)),
    ("README.md", ("tests.docs",)),
    ("ARCHITECTURE.md", ("tests.docs",)),
    ("CONTRIBUTING.md", ("tests.docs",)),
    ("CHANGELOG.md", ("tests.docs",)),
    ("SECURITY.md", ("tests.docs",)),
    ("mkdocs.yml", ("tests.docs",)),
    ("hack/site/", ("tests.docs",)),
    ("hack/words-allowed.txt", ("tests.docs",)),
    ("Dockerfile", ("tests.chart",)),
    ("hack/build-image", ("tests.chart",)),
    ("hack/chaos", ("tests.chaos",)),
    ("hack/demo", ("tests.chaos",)),
    ("hack/local_cluster/", ("tests.cluster",)),
    ("hack/kind/", ("tests.cluster",)),
    ("hack/loop/", ("tests.loop",)),
    ("tests/sabotage/", ("tests.loop", "tests.docs")),
    ("tests/conftest.py", ("tests",)),
)
"""What no import shows: a path's beginning, and the folders of tests that read such files."""


@dataclass(frozen=True)
class Tree:
    """What the files of a working tree import."""

    importers: Mapping[str, frozenset[str]]
    """The modules that import a module directly, by its name; test files and their helpers are modules too."""
    tests: frozenset[str]
    """The test files, as modules: ``tests.relay.test_relay_wire``."""
    units: frozenset[str]
    """Those of them that have unit tests."""


@dataclass(frozen=True)
class Choice:
    """Test files as modules, in the order to run them."""

    run: tuple[str, ...]
    left: tuple[str, ...]
    """Those that the change needs as well, and that the budget has no room for."""


def choose(changed: Iterable[str], tree: Tree, seconds: Mapping[str, float], budget: float) -> Choice:
    """Choose files of unit tests for changed paths.

    First come the tests of the touched packages, then those of what imports them, by the number of imports between.
    ``seconds`` are those of a test file; ``budget`` is the sum that may be chosen.
    """
    paths = sorted(changed)
    touched = {name for path in paths if (name := module_of(path)) is not None}
    distances = _distances(touched, tree.importers)
    folders = {f"tests.{package_of(name).rpartition('.')[2]}" for name in touched if not name.startswith("tests.")}
    folders |= {folder for path in paths for prefix, tests in FOLDERS if path.startswith(prefix) for folder in tests}

    def rank(test: str) -> tuple[int, float, float, str]:
        own = test in touched or any(test.startswith(f"{folder}.") for folder in folders)
        return (0 if own else 1, distances.get(test, inf), seconds.get(test, UNKNOWN_SECONDS), test)

    needed = sorted(rank(test) for test in tree.units)
    run: list[str] = []
    left: list[str] = []
    for other, distance, cost, test in needed:
        if other and distance == inf:
            continue
        fits = cost <= budget
        (run if fits else left).append(test)
        budget -= cost if fits else 0
    return Choice(tuple(run), tuple(left))


def module_of(path: str) -> str | None:
    """Name the module in a Python file of the tree; a package's ``__init__`` has the package's name."""
    if not path.endswith(".py"):
        return None
    for root in ("crds/", "operator/", "runtime/", "bench/"):
        path = path.removeprefix(root)
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def package_of(module: str) -> str:
    """Return the first two parts of a module's name: ``rljob_runtime.relay``, ``hack.chaos``."""
    return ".".join(module.split(".")[:2])


def about(package: str, tree: Tree) -> tuple[str, ...]:
    """Return the test files of a package: its folder's, or, without a folder, those that import one of its modules."""
    inside = sorted(test for test in tree.tests if test.startswith(f"tests.{package}."))
    if inside:
        return tuple(inside)
    modules = [module for module in tree.importers if module.startswith("rljob_") and package in module.split(".")[:3]]
    return tuple(sorted({test for module in modules for test in tree.importers[module]} & tree.tests))


def _distances(touched: Iterable[str], importers: Mapping[str, frozenset[str]]) -> dict[str, float]:
    """Return the number of imports between each module and the nearest touched one."""
    distances: dict[str, float] = dict.fromkeys(touched, 0)
    edge = list(distances)
    while edge:
        following = [importer for module in edge for importer in importers.get(module, ()) if importer not in distances]
        step = distances[edge[0]] + 1
        distances |= dict.fromkeys(following, step)
        edge = list(dict.fromkeys(following))
    return distances
