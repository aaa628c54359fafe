"""What `make test` and `make test-all` are made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hack.loop import seconds, suites
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
    kept, measured = tmp_path / "kept.json", tmp_path / "unit.xml"
    kept.write_text(json.dumps({"tests.a.test_a": 9, "tests.b.test_b": 4}))
    assert seconds.known(kept, measured) == {"tests.a.test_a": 9, "tests.b.test_b": 4}
    cases = "".join(f'<testcase classname="tests.a.test_a" name="{n}" time="{n}.5"/>' for n in (1, 2))
    measured.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert seconds.known(kept, measured) == {"tests.a.test_a": 4.0, "tests.b.test_b": 4}
