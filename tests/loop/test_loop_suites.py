"""What `make test` and `make test-all` are made of."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hack.loop import order, seconds, suites
from hack.loop.parts import Part


def names(parts: list[Part]) -> list[str]:
    return [part.name for part in parts]


def markers(parts: list[Part]) -> dict[str, str]:
    return {part.name: part.command[part.command.index("-m") + 1] for part in parts if "pytest" in part.command}


def test_nothing_is_built_before_the_unit_tests_have_passed() -> None:
    found = names(suites.everything({}))
    assert found.index("lint") < found.index("unit") < found.index("cluster build") < found.index("cluster")
    assert found[-1] == "mutants"


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
    parts = suites.package(["tests.relay.test_relay_wire"], environment)
    assert names(parts) == ["unit", *before, "cluster", "engine"]
    assert ("KUBECONFIG=$(" in " ".join(parts[-2].command)) is (environment.get("CLUSTER") == "kind")


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
        self.group = ""

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.group = mark.args[0]


def ordered(monkeypatch: pytest.MonkeyPatch, several: bool, *items: Item) -> list[Item]:
    found = {"unit": {"tests.a": 2.0, "tests.b": 1.0}, "cluster": {"tests.b": 3.0, "tests.c": 1.5, "tests.d": 1.0}}
    monkeypatch.setattr(order, "known", lambda part: found.get(part, {}))
    config = SimpleNamespace(workerinput={}) if several else SimpleNamespace()
    chosen = list(items)
    order.pytest_collection_modifyitems(config, chosen)  # type: ignore[arg-type]
    return chosen


@pytest.mark.parametrize(("several", "wanted"), [(True, "BbAa"), (False, "AaBb")])
def test_of_several_processes_none_begins_the_longest_file_last(
    several: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = ordered(monkeypatch, several, *(Item(f"tests/{name.lower()}.py::{name}") for name in "AaBb"))
    assert "".join(item.nodeid[-1] for item in items) == wanted


def test_files_that_share_a_server_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        Item("tests/a.py::a", "tmp_path"),
        Item("tests/b.py::b", "server", "apiserver"),
        Item("tests/c.py::c", "fake_nodes", "tmp_path"),
        Item("tests/d.py::d"),
        Item("tests/d.py::e", "apiserver"),
        Item("tests/d.py::f", "kueue", "fake_nodes"),
        Item("tests/e.py::g", "apiserver"),
    ]
    items = ordered(monkeypatch, True, *files)
    assert [(item.nodeid[-1], item.group) for item in items] == [
        ("b", "apiserver"),
        ("g", "apiserver"),
        ("a", "tests.a"),
        ("c", "fake_nodes"),
        ("d", "kueue"),
        ("e", "kueue"),
        ("f", "kueue"),
    ]


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("tests/a.py::test_a@apiserver", "tests/a.py::test_a"),
        ("tests/a.py::test_a[1@b]@apiserver", "tests/a.py::test_a[1@b]"),
        ("tests/a.py::test_a[1@b]", "tests/a.py::test_a[1@b]"),
        ("tests/a.py::test_a", "tests/a.py::test_a"),
    ],
)
def test_a_failed_test_is_named_as_the_command_line_takes_it(told: str, wanted: str) -> None:
    report = SimpleNamespace(nodeid=told)
    order.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    assert report.nodeid == wanted
