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
    ("crds/", ("api", "charts")),
    ("runtime/rljob_runtime/simulator/", ("simulation",)),
    ("charts/", ("charts",)),
    ("examples/", ("charts", "api")),
    ("docs/", ("docs",)),
    ("README.md", ("docs",)),
    ("ARCHITECTURE.md", ("docs",)),
    ("CONTRIBUTING.md", ("docs",)),
    ("CHANGELOG.md", ("docs",)),
    ("SECURITY.md", ("docs",)),
    ("mkdocs.yml", ("docs",)),
    ("hack/site/", ("docs",)),
    ("hack/words-allowed.txt", ("docs",)),
    ("Dockerfile", ("charts",)),
    ("hack/build-image", ("charts",)),
    ("hack/local_cluster/", ("hack.local_cluster",)),
    ("hack/kind/", ("hack.local_cluster",)),
    ("hack/loop/", ("hack.loop",)),
    ("tests/conftest.py", ("",)),
    # Where mutants stand, and the tests that they name.
    *(
        (root, ("hack.mutants",))
        for root in ("crds/", "operator/", "runtime/", "bench/", "envs/", "hack/chaos/", "tests/")
    ),
)
"""A path's beginning, and the folders of the tests that read such files, which no import shows. They are folders of
`tests/`, or of one of its kinds; the empty name is all of them."""

MIRRORS = {
    "rljob_api": ("api",),
    "rljob_bench": ("bench",),
    "rljob_env": ("envs",),
    "rljob_kube": ("kube",),
    "rljob_operator": ("operator",),
    "rljob_runtime": (),
    "hack": ("hack",),
}
"""The folders, below a kind of tests, that mirror a root."""


@dataclass(frozen=True)
class Tree:
    """What the files of a working tree import."""

    importers: Mapping[str, frozenset[str]]
    """The modules that import a module directly, by its name; test files and their helpers are modules too."""
    tests: frozenset[str]
    """The test files, as modules: ``tests.unit.relay.network.test_wire``."""
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
    folders = {folder for path in paths for prefix, tests in FOLDERS if path.startswith(prefix) for folder in tests}

    def rank(test: str) -> tuple[int, float, float, str]:
        own = test in touched or any(_mirrors(test, name) for name in touched) or any(_is_in(test, f) for f in folders)
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
    for root in ("crds/", "operator/", "runtime/", "bench/", "envs/"):
        path = path.removeprefix(root)
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def about(package: str, tree: Tree) -> tuple[str, ...]:
    """Return the test files of a package: its folders', or, without a folder, those that import one of its modules."""
    inside = sorted(test for test in tree.tests if package in test.split(".")[1:-1])
    if inside:
        return tuple(inside)
    modules = [module for module in tree.importers if module.startswith("rljob_") and package in module.split(".")[:3]]
    return tuple(sorted({test for module in modules for test in tree.importers[module]} & tree.tests))


def _mirrors(test: str, module: str) -> bool:
    """Say whether a test file stands in the folder that mirrors a module's package, or below it.

    A module that stands directly in its root has the tests that stand directly in that root's folder.
    """
    root, *inner = module.split(".")
    if root not in MIRRORS:
        return False
    folder, mirror = tuple(test.split(".")[2:-1]), MIRRORS[root]
    package = (*mirror, *inner[:1])
    return folder[: len(package)] == package or (len(inner) == 1 and folder == mirror != ())


def _is_in(test: str, folder: str) -> bool:
    """Say whether a test file stands in a folder of `tests/` or of one of its kinds, or below it."""
    parts, wanted = test.split(".")[1:-1], folder.split(".") if folder else []
    return wanted in (parts[: len(wanted)], parts[1 : 1 + len(wanted)])


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
