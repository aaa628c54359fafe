"""Which test files a change needs, and which of them fit into a budget."""

from __future__ import annotations

import pytest
from hack.loop import imports
from hack.loop.choice import Choice, Tree, about, choose, module_of

WIRE, RELAY = "rljob_runtime.relay.network.wire", "rljob_runtime.relay.relay"
FLEET, CLI = "rljob_runtime.coordinator.fleet.fleet", "rljob_runtime.cli"
T_WIRE, T_CHAIN = "tests.relay.test_wire", "tests.relay.test_chain"
T_FLEET, T_CLI, T_DOCS = "tests.coordinator.test_fleet", "tests.cli.test_cli", "tests.docs.test_links"
T_LIVE = "tests.relay.test_live"
TREE = Tree(
    importers={
        WIRE: frozenset({RELAY, T_WIRE, "tests.relay.relay_kit"}),
        RELAY: frozenset({FLEET}),
        "tests.relay.relay_kit": frozenset({T_CHAIN, T_LIVE}),
        FLEET: frozenset({CLI, T_FLEET}),
        CLI: frozenset({T_CLI}),
        "rljob_runtime.audit.on_policy": frozenset({T_FLEET}),
    },
    tests=frozenset({T_WIRE, T_CHAIN, T_FLEET, T_CLI, T_DOCS, T_LIVE}),
    units=frozenset({T_WIRE, T_CHAIN, T_FLEET, T_CLI, T_DOCS}),
)


@pytest.mark.parametrize(
    ("changed", "run"),
    [
        (set(), ()),
        ({"Makefile"}, ()),
        ({"runtime/rljob_runtime/relay/network/wire.py"}, (T_WIRE, T_CHAIN, T_FLEET, T_CLI)),
        ({"runtime/rljob_runtime/relay/relay.py"}, (T_CHAIN, T_WIRE, T_FLEET, T_CLI)),
        ({"runtime/rljob_runtime/cli/__init__.py"}, (T_CLI,)),
        ({"tests/relay/relay_kit.py"}, (T_CHAIN,)),
        ({"tests/relay/test_wire.py"}, (T_WIRE,)),
        ({"tests/relay/test_live.py"}, ()),
        ({"docs/concepts/weight-relay.md"}, (T_DOCS,)),
        (
            {"docs/concepts/weight-relay.md", "runtime/rljob_runtime/coordinator/fleet/fleet.py"},
            (T_FLEET, T_DOCS, T_CLI),
        ),
        ({"tests/conftest.py"}, (T_CLI, T_FLEET, T_DOCS, T_CHAIN, T_WIRE)),
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
        (4.0, (T_CHAIN,), (T_WIRE, T_FLEET, T_CLI)),
        (0.0, (), (T_WIRE, T_CHAIN, T_FLEET, T_CLI)),
    ],
)
def test_what_does_not_fit_is_left(budget: float, run: tuple[str, ...], left: tuple[str, ...]) -> None:
    seconds = {T_WIRE: 5.0, T_FLEET: 50.0, T_CLI: 4.5}
    assert choose({"runtime/rljob_runtime/relay/network/wire.py"}, TREE, seconds, budget) == Choice(run, left)


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
    [("relay", (T_CHAIN, T_LIVE, T_WIRE)), ("audit", (T_FLEET,)), ("nothing", ())],
)
def test_a_package_has_its_folders_tests_or_those_that_import_it(package: str, tests: tuple[str, ...]) -> None:
    assert about(package, TREE) == tests


def test_the_tree_has_the_imports_of_products_tests_and_tools() -> None:
    tree = imports.tree()
    direct = tree.importers["rljob_runtime.relay.network.wire"]
    assert {"rljob_runtime.relay.relay", "tests.relay.test_relay_wire"} <= direct
    assert "tests.relay.test_relay_chain" in tree.importers["tests.relay.relay_kit"]
    assert "tests.chaos.test_chaos_plan" in tree.importers["hack.chaos.rows"]
    assert "hack.chaos.__main__" in tree.importers["hack.chaos.rows"], "a relative import"
    assert "tests.e2e.test_e2e_chaos" in tree.tests - tree.units
