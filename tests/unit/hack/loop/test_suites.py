"""What `make test` and `make test-all` are made of."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hack.loop import order, seconds, suites
from hack.loop.imports import path_of
from hack.loop.parts import Part

UNITS = "tests.unit.relay.network.test_wire"
SERVER = "tests.integration.hack.local_cluster.test_apiserver"
NODES = "tests.e2e.test_real_nodes"
ENGINE = "tests.integration.envs.test_engine_clients"


def names(parts: list[Part]) -> list[str]:
    return [part.name for part in parts]


def markers(parts: list[Part]) -> dict[str, str]:
    return {part.name: part.command[part.command.index("-m") + 1] for part in parts if "pytest" in part.command}


def test_nothing_is_built_before_the_unit_tests_have_passed() -> None:
    found = names(suites.everything({}))
    assert found.index("lint") < found.index("unit") < found.index("cluster build") < found.index("cluster")
    assert found[-1] == "mutants"


@pytest.mark.parametrize(("processors", "processes"), [(1, "2"), (2, "3"), (3, "4"), (64, "4"), (None, "2")])
def test_unit_tests_have_one_process_more_than_processors(
    monkeypatch: pytest.MonkeyPatch, processors: int | None, processes: str
) -> None:
    monkeypatch.setattr(suites.os, "cpu_count", lambda: processors)
    command = suites.unit().command
    assert command[command.index("-n") + 1] == processes


def test_every_row_runs_in_test_all_and_one_of_a_family_in_test() -> None:
    some, every = markers(suites.everything({})), markers(suites.everything({}, every_row=True))
    assert all(expression.endswith(" and not slow") for expression in some.values())
    assert {name: expression.removesuffix(" and not slow") for name, expression in some.items()} == {
        name: expression for name, expression in every.items() if name != "all minors"
    }
    assert every["all minors"] == "all_minors"


@pytest.mark.parametrize(
    ("environment", "before"),
    [
        ({}, ["cluster build"]),
        ({"CLUSTER": "local"}, ["cluster build"]),
        ({"CLUSTER": "kind"}, ["cluster up"]),
        ({"KUBECONFIG": "mine", "CLUSTER": "own"}, []),
    ],
)
def test_a_cluster_of_ones_own_needs_no_build(environment: dict[str, str], before: list[str]) -> None:
    parts = suites.package([UNITS, SERVER], environment)
    assert names(parts) == ["unit", *before, "cluster"]
    assert ("KUBECONFIG=$(" in " ".join(parts[-1].command)) is (environment.get("CLUSTER") == "kind")


@pytest.mark.parametrize(
    ("tests", "parts"),
    [
        ((UNITS,), ["unit"]),
        ((UNITS, ENGINE), ["unit", "engine"]),
        ((UNITS, SERVER), ["unit", "cluster build", "cluster"]),
        ((NODES,), ["unit", "cluster build", "cluster"]),
        ((ENGINE, NODES, SERVER), ["unit", "cluster build", "cluster", "engine"]),
    ],
)
def test_a_package_without_tests_of_clusters_builds_nothing(tests: tuple[str, ...], parts: list[str]) -> None:
    found = suites.package(tests, {})
    assert names(found) == parts
    files = {part.name: [word for word in part.command if word.startswith("tests/")] for part in found}
    assert files["unit"] == [path_of(test) for test in tests]
    assert files.get("cluster", []) == [path_of(test) for test in tests if test in (SERVER, NODES)]
    assert files.get("engine", []) == [path_of(test) for test in tests if test == ENGINE]


def test_seconds_are_summed_by_file_and_the_last_run_here_counts(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(
        json.dumps({"unit": {"tests.a.test_a": 9, "tests.b.test_b": 4}, "real nodes": {"tests.c.test_c": 5}})
    )
    assert seconds.known("unit", kept, tmp_path) == {"tests.a.test_a": 9, "tests.b.test_b": 4}
    named = [("tests.a.test_a", 1.5), ("tests.a.test_a.TestMachine", 2.5)]
    cases = "".join(f'<testcase classname="{name}" name="n" time="{time}"/>' for name, time in named)
    (tmp_path / "unit.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert seconds.known("unit", kept, tmp_path) == {"tests.a.test_a": 4.0, "tests.b.test_b": 4}
    assert seconds.known("real nodes", kept, tmp_path) == {"tests.c.test_c": 5}
    assert seconds.known("engine", kept, tmp_path) == {}


class Item:
    """A test, as far as its order needs it."""

    def __init__(self, nodeid: str, *fixtures: str) -> None:
        self.nodeid = nodeid
        self.fixturenames = fixtures
        self.user_properties: list[tuple[str, str]] = []


def ordered(monkeypatch: pytest.MonkeyPatch, several: bool, *items: Item) -> str:
    found = {"unit": {"tests.a": 2.0, "tests.b": 1.0}, "cluster": {"tests.b": 3.0, "tests.c": 1.5, "tests.d": 1.0}}
    monkeypatch.setattr(order, "known", lambda part: found.get(part, {}))
    monkeypatch.setattr(order, "servers", lambda: {"tests.c": "kueue", "tests.d": "kueue"})
    config = SimpleNamespace(workerinput={}) if several else SimpleNamespace()
    chosen = list(items)
    order.pytest_collection_modifyitems(config, chosen)  # type: ignore[arg-type]
    return "".join(item.nodeid[-1] for item in chosen)


@pytest.mark.parametrize(("several", "wanted"), [(True, "BbCcDdAa"), (False, "AaBbCcDd")])
def test_of_several_processes_none_begins_the_longest_files_last(
    several: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [Item(f"tests/{name.lower()}.py::{name}") for name in "AaBbCcDd"]
    assert ordered(monkeypatch, several, *items) == wanted


def test_each_file_notes_the_largest_server_that_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"a": ("tmp_path",), "b": ("server", "apiserver"), "c": ("fake_nodes", "apiserver")}
    items = [Item(f"tests/{name}.py::{name}", *fixtures) for name, fixtures in used.items()]
    items.append(Item("tests/b.py::d", "tmp_path"))
    ordered(monkeypatch, True, *items)
    noted = {item.nodeid[-1]: dict(item.user_properties).get(seconds.SERVER) for item in items}
    assert noted == {"a": None, "b": "apiserver", "c": "fake_nodes", "d": "apiserver"}


def test_servers_are_read_from_results_before_what_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "seconds.json"
    kept.write_text('{"server": {"tests.a": "kueue", "tests.b": "apiserver"}}')
    noted = '<properties><property name="server" value="fake_nodes"/><property name="x" value="y"/></properties>'
    cases = f'<testcase classname="tests.b.TestIt" name="one" time="1">{noted}</testcase>'
    (tmp_path / "cluster.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert seconds.servers(kept, tmp_path) == {"tests.a": "kueue", "tests.b": "fake_nodes"}


def test_files_that_share_a_server_are_one_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "servers", lambda: {"tests.a": "kueue", "tests.b": "kueue"})
    options = {"dist": "loadfile", "tx": ["popen"], "px": []}
    config = SimpleNamespace(getoption=options.get, getvalue=options.get, option=SimpleNamespace(**options))
    made = order.pytest_xdist_make_scheduler(config, None)  # type: ignore[arg-type]
    assert made is not None
    scopes = [made._split_scope(f"tests/{name}.py::test[x::y]") for name in "abc"]
    assert scopes == ["kueue", "kueue", "tests.c"]
    options["dist"] = "load"
    assert order.pytest_xdist_make_scheduler(config, None) is None  # type: ignore[arg-type]
