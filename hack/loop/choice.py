"""Choice: which test files a change needs. Those of the touched packages run, and others as far as a budget allows.

A test needs to run when it imports a changed module, directly or through others. An import of everything (the command
line) makes nearly every test depend on nearly every module: the order matters as much as the selection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf

UNKNOWN_SECONDS = 2.0
"""Seconds of a test file that was never measured."""

FOLDERS = (
    ("crds/", ("api", "charts")),
    ("runtime/rljob_runtime/simulator/", ("simulation",)),
    ("charts/", ("charts",)),
    ("examples/", ("charts", "api", "hack.test_demo_plan")),
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
    ("hack/setup", ("hack.test_setup",)),
    ("hack/demo", ("hack.test_demo_plan",)),
    ("hack/local_cluster/", ("hack.local_cluster",)),
    ("hack/kind/", ("hack.local_cluster",)),
    ("hack/loop/", ("hack.loop",)),
)
"""A path's beginning, and the folders of the tests that read such files, which no import shows. They are folders of
`tests/`, or of one of its kinds."""

WIDE = (
    ("tests/conftest.py", ""),
    # Where mutants stand, and the tests that they name.
    *(
        (root, "hack.mutants")
        for root in ("crds/", "operator/", "runtime/", "bench/", "envs/", "hack/chaos/", "tests/")
    ),
)
"""The same for tests that nearly every change needs, and that take long. The empty name is all of them."""

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
    """Those that the change needs as well, and that the budget has no room for. None of a touched package."""


def choose(changed: Iterable[str], tree: Tree, seconds: Mapping[str, float], budget: float) -> Choice:
    """Choose files of unit tests for changed paths.

    The tests of the touched packages run whatever they take. Then come those of packages around them and those of what
    imports them, by the number of imports between, as many as fit into the rest of the budget.
    ``seconds`` are those of a test file; ``budget`` is the sum that may be chosen.
    """
    paths = sorted(changed)
    touched = {name for path in paths if (name := module_of(path)) is not None}
    distances = _distances(touched, tree.importers)
    folders = {folder for path in paths for prefix, tests in FOLDERS if path.startswith(prefix) for folder in tests}
    wide = {folder for path in paths for prefix, folder in WIDE if path.startswith(prefix)}
    packages = _packages(touched, {_folder(test) for test in tree.units})

    def rank(test: str) -> tuple[int, float, float, str]:
        own = test in touched or _folder(test) in packages or any(_is_in(test, f) for f in folders)
        near = any(_mirrors(test, name) for name in touched) or any(_is_in(test, f) for f in wide)
        return (0 if own else 1 if near else 2, distances.get(test, inf), seconds.get(test, UNKNOWN_SECONDS), test)

    needed = sorted(rank(test) for test in tree.units)
    run: list[str] = []
    left: list[str] = []
    for nearness, distance, cost, test in needed:
        if nearness == 2 and distance == inf:
            continue
        fits = nearness == 0 or cost <= budget
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


def _folder(test: str) -> tuple[str, ...]:
    """Return the folder of a test file, below its kind."""
    return tuple(test.split(".")[2:-1])


def _packages(modules: Iterable[str], folders: Collection[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return the folders of tests of the modules' packages: of each the one that mirrors it, or the nearest above.

    A module that stands directly in its root has the tests that stand directly in that root's folder.
    """
    found = set()
    for module in modules:
        root, *inner = module.split(".")
        names = (*MIRRORS.get(root, ()), *inner) if root in MIRRORS else ()
        mirrors = (names[:end] for end in range(len(names), 0, -1))
        found |= set(islice((mirror for mirror in mirrors if mirror in folders), 1))
    return found


def _mirrors(test: str, module: str) -> bool:
    """Say whether a test file stands below the folder that mirrors the outermost package of a module."""
    root, *inner = module.split(".")
    package = (*MIRRORS.get(root, ()), *inner[:1])
    return root in MIRRORS and _folder(test)[: len(package)] == package


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
