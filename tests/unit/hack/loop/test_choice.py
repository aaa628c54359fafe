"""Which test files a change needs, and which of them fit into a budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hack.loop import __main__ as loop
from hack.loop import imports
from hack.loop.choice import Choice, Tree, about, choose, module_of
from hack.loop.parts import Part, Row

WIRE, RELAY = "rljob_runtime.relay.network.wire", "rljob_runtime.relay.relay"
FLEET, CLI = "rljob_runtime.coordinator.fleet.fleet", "rljob_runtime.cli"
KIT, NODES, APPLIER = "tests.support.relay", "rljob_operator.policies.failure.nodes", "rljob_operator.applier"
T_WIRE, T_CHAIN = "tests.unit.relay.network.test_wire", "tests.unit.relay.test_chain"
T_FLEET, T_CLI, T_DOCS = (
    "tests.unit.coordinator.fleet.test_fleet",
    "tests.unit.cli.test_cli",
    "tests.unit.docs.test_links",
)
T_NODES, T_APPLIER = "tests.unit.operator.policies.failure.test_nodes", "tests.unit.operator.test_applier"
T_SEEDS, T_LIVE = "tests.simulation.test_seeds", "tests.integration.relay.test_live"
UNITS = frozenset({T_WIRE, T_CHAIN, T_FLEET, T_CLI, T_DOCS, T_NODES, T_APPLIER, T_SEEDS})
TREE = Tree(
    importers={
        WIRE: frozenset({RELAY, T_WIRE, KIT}),
        RELAY: frozenset({FLEET}),
        KIT: frozenset({T_CHAIN, T_LIVE}),
        FLEET: frozenset({CLI, T_FLEET}),
        CLI: frozenset({T_CLI}),
        "rljob_runtime.audit.on_policy": frozenset({T_FLEET}),
    },
    tests=UNITS | {T_LIVE},
    units=UNITS,
)


@pytest.mark.parametrize(
    ("changed", "run"),
    [
        (set(), ()),
        ({"Makefile"}, ()),
        ({"runtime/rljob_runtime/relay/network/wire.py"}, (T_WIRE, T_CHAIN, T_FLEET, T_CLI)),
        # A package below the touched one is near, but not touched.
        ({"runtime/rljob_runtime/relay/relay.py"}, (T_CHAIN, T_WIRE, T_FLEET, T_CLI)),
        ({"runtime/rljob_runtime/cli/__init__.py"}, (T_CLI,)),
        ({"tests/support/relay.py"}, (T_CHAIN,)),
        ({"tests/unit/relay/network/test_wire.py"}, (T_WIRE,)),
        ({"tests/integration/relay/test_live.py"}, ()),
        ({"operator/rljob_operator/policies/failure/nodes.py"}, (T_NODES,)),
        # A module of a root has the tests that stand directly in the root's folder.
        ({"operator/rljob_operator/applier.py"}, (T_APPLIER,)),
        ({"runtime/rljob_runtime/simulator/run.py"}, (T_SEEDS,)),
        ({"docs/concepts/weight-relay.md"}, (T_DOCS,)),
        (
            {"docs/concepts/weight-relay.md", "runtime/rljob_runtime/coordinator/fleet/fleet.py"},
            (T_FLEET, T_DOCS, T_CLI),
        ),
        # A package without tests of its own has those of the one around it.
        ({"runtime/rljob_runtime/coordinator/fleet/joining/plan.py"}, (T_FLEET,)),
        ({"tests/conftest.py"}, tuple(sorted(UNITS))),
    ],
    ids=lambda value: ", ".join(sorted(value)) if isinstance(value, set) else None,
)
def test_who_imports_what_changed_is_needed_the_nearest_first(changed: set[str], run: tuple[str, ...]) -> None:
    assert choose(changed, TREE, {}, 1e9) == Choice(run, ())


@pytest.mark.parametrize(
    ("budget", "run", "left"),
    [
        (100.0, (T_WIRE, T_CHAIN, T_FLEET, T_CLI), ()),
        (60.0, (T_WIRE, T_CHAIN, T_FLEET), (T_CLI,)),
        # What is too long for the rest leaves its place to what follows.
        (20.0, (T_WIRE, T_CHAIN, T_CLI), (T_FLEET,)),
        # The tests of the touched package run whatever is left.
        (4.0, (T_WIRE,), (T_CHAIN, T_FLEET, T_CLI)),
        (-100.0, (T_WIRE,), (T_CHAIN, T_FLEET, T_CLI)),
    ],
)
def test_what_does_not_fit_is_left(budget: float, run: tuple[str, ...], left: tuple[str, ...]) -> None:
    seconds = {T_WIRE: 5.0, T_FLEET: 50.0, T_CLI: 4.5}
    assert choose({"runtime/rljob_runtime/relay/network/wire.py"}, TREE, seconds, budget) == Choice(run, left)


@pytest.mark.parametrize(
    "changed", ["tests/unit/relay/test_chain.py", "docs/index.md", "runtime/rljob_runtime/cli/x.py"]
)
def test_what_changed_is_tested_whatever_it_takes(changed: str) -> None:
    wanted = {"tests": T_CHAIN, "docs": T_DOCS, "runtime": T_CLI}[changed.partition("/")[0]]
    assert choose({changed}, TREE, dict.fromkeys(UNITS, 1000.0), 90.0).run == (wanted,)


def test_what_nearly_every_change_needs_is_chosen_as_the_budget_allows() -> None:
    registry = "tests.unit.hack.mutants.test_registry"
    tree = replace(TREE, units=UNITS | {registry})
    changed, seconds = {"runtime/rljob_runtime/cli/x.py"}, {registry: 20.0, T_CLI: 15.0}
    assert choose(changed, tree, seconds, 35.0) == Choice((T_CLI, registry), ())
    assert choose(changed, tree, seconds, 34.0) == Choice((T_CLI,), (registry,))
    assert choose({"tests/conftest.py"}, TREE, {}, 4.0).run == tuple(sorted(UNITS))[:2]


def test_a_slow_lint_leaves_the_tests_of_the_touched_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Part] = []
    seconds = iter([0.0, 500.0])

    def run(parts: list[Part], rows: list[Row]) -> bool:
        ran.extend(parts)
        return parts[0].name == "lint"

    for name, value in {"run": run, "tree": lambda: TREE, "known": lambda part: {T_WIRE: 100.0}}.items():
        monkeypatch.setattr(loop, name, value)
    monkeypatch.setattr(loop, "changed", lambda base: {"runtime/rljob_runtime/relay/network/wire.py"})
    monkeypatch.setattr(loop.time, "monotonic", lambda: next(seconds))
    assert not loop.check("HEAD", []), "as its tests failed"
    assert [part.name for part in ran] == ["lint", "unit"]
    assert ran[-1].command[-1] == "tests/unit/relay/network/test_wire.py"
    assert capsys.readouterr().out.splitlines() == [
        "1 files differ from HEAD: 1 test files",
        f"left to `make test`: 3 test files, {T_CHAIN}, {T_FLEET}, {T_CLI}",
    ]


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("runtime/rljob_runtime/relay/network/wire.py", "rljob_runtime.relay.network.wire"),
        ("crds/rljob_api/__init__.py", "rljob_api"),
        ("hack/chaos/rows.py", "hack.chaos.rows"),
        ("charts/rljob/values.yaml", None),
    ],
)
def test_a_file_is_a_module(path: str, module: str | None) -> None:
    assert module_of(path) == module


@pytest.mark.parametrize(
    ("package", "tests"),
    [
        ("relay", (T_LIVE, T_WIRE, T_CHAIN)),
        ("policies", (T_NODES,)),
        ("simulation", (T_SEEDS,)),
        ("audit", (T_FLEET,)),
        ("nothing", ()),
    ],
)
def test_a_package_has_its_folders_tests_or_those_that_import_it(package: str, tests: tuple[str, ...]) -> None:
    assert about(package, TREE) == tests


@pytest.fixture(scope="module")
def tree() -> Tree:
    return imports.tree()


def test_the_tree_has_the_imports_of_products_tests_and_tools(tree: Tree) -> None:
    direct = tree.importers["rljob_runtime.relay.network.wire"]
    assert {"rljob_runtime.relay.relay", "tests.unit.relay.network.test_wire"} <= direct
    assert "tests.unit.relay.test_chain" in tree.importers["tests.support.relay"]
    assert "tests.unit.relay.network.test_wire" in tree.importers["tests.unit.relay.conftest"], "a folder above"
    assert "tests.unit.hack.chaos.test_schedule" in tree.importers["hack.chaos.rows"]
    assert "hack.chaos.__main__" in tree.importers["hack.chaos.rows"], "a relative import"
    assert "tests.e2e.test_chaos" in tree.tests - tree.units
