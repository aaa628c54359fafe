"""Tables that list all of something list all of it: faults, chart values, releases, fuzzers, engine settings."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.chaos.every import parts
from hack.chaos.rows import ROWS
from hack.local_cluster.cli import parser
from hack.local_cluster.kind import PUBLISHED
from hack.local_cluster.programs import recipe
from rljob_runtime.simulator.faults.plan import APPLICABLE, Role, role_of
from tests.support.docs import page, quoted, rows
from tests.support.paths import ROOT


def test_the_faults_of_a_campaign() -> None:
    told = [name for names, _ in rows(page("chaos.md"), "# Faults on purpose") for name in quoted(names)]
    assert sorted(told) == sorted(ROWS)
    text = page("chaos.md").read_text(encoding="utf-8")
    assert f"make chaos FAULTS={len(ROWS)} " in text
    first, second, third = (part.faults for part in parts(100))
    assert f"have all {len(ROWS)} kinds" in text
    assert f"of 100, {first}, {second} and {third}." in text
    assert f"of {len(ROWS)} kinds" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_faults_of_the_simulator() -> None:
    told: dict[Role, set[str]] = {}
    before: set[str] = set()
    for targets, what in rows(page("simulate.md"), "## Write a plan of your own"):
        kinds = {kind.value for kinds in APPLICABLE.values() for kind in kinds}
        if what.startswith("all but"):
            said = kinds - set(re.findall(r"[\w-]+", what.removeprefix("all but"))) - {"and"}
        elif what == "all":
            said = kinds
        elif what.startswith("the same"):
            said = before | (set(re.findall(r"[\w-]+", what)) & kinds)
        else:
            said = set(what.split(", "))
        before = said
        for target in quoted(targets):
            assert told.setdefault(role_of(target), said) == said
    assert told == {role: {kind.value for kind in kinds} for role, kinds in APPLICABLE.items()}


def test_the_values_of_the_chart() -> None:
    values: dict[str, Any] = yaml.safe_load((ROOT / "charts/rljob/values.yaml").read_text(encoding="utf-8"))
    for names, default, _ in rows(page("install.md"), "## The chart"):
        shown = default.split(", ") if "<version>" not in default else ["", ""]
        for name, told in zip(quoted(names), shown, strict=True):
            value: Any = values
            for step in name.split("."):
                value = value[step]
            words = {"all": [], "[Native]": ["Native"], "true": True, "false": False, "": ""}
            assert value == words.get(told, int(told) if told.isdigit() else told), name


def test_the_releases_of_kubernetes() -> None:
    told = {row[0]: row for row in rows(page("kubernetes.md"), "# Supported Kubernetes") if row[0] in recipe.MINORS}
    tested = {minor: recipe.release(minor).version.removeprefix("v") for minor in recipe.MINORS}
    published = {minor: image.removeprefix("v").partition("@")[0] for minor, image in PUBLISHED.items()}
    assert {minor: (row[1], row[-1]) for minor, row in told.items()} == {
        minor: (tested[minor], published[minor]) for minor in recipe.MINORS
    }


def test_the_least_kubernetes_is_the_charts() -> None:
    chart = yaml.safe_load((ROOT / "charts/rljob/Chart.yaml").read_text(encoding="utf-8"))
    least = re.fullmatch(r">=(1\.\d+)\.0-0", chart["kubeVersion"])
    assert least is not None
    told = [row[0] for row in rows(page("kubernetes.md"), "# Supported Kubernetes")]
    assert told[-2].startswith(f"{least[1]} to ")
    assert told[-1] == f"before {least[1]}"
    for name in ("install.md", "on-a-cluster.md"):
        assert f"Kubernetes {least[1]} or newer" in page(name).read_text(encoding="utf-8"), name


def test_the_commands_of_the_local_cluster() -> None:
    told = " ".join(text for command, _ in rows(page("local-cluster.md"), "## Commands") for text in quoted(command))
    actions = parser()._subparsers
    assert actions is not None
    [commands] = [action.choices for action in actions._group_actions]
    assert commands is not None
    for name, command in commands.items():
        assert re.search(rf"\b{name}\b", told), name
        for action in command._actions:
            if action.dest == "action":
                assert {word for word in action.choices or () if not re.search(rf"{name} {word}\b", told)} == set()


# --- fuzzers ----------------------------------------------------------------------------------------------------------


def _budgets(path: Path) -> dict[str, int]:
    """Examples of each test that draws them, by its name; what is slow, or needs vLLM, is not there."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        written = [ast.unparse(one) for one in node.decorator_list]
        settings = [ast.unparse(named.get(one, ast.Constant(one))) if one in named else one for one in written]
        budget = r"max_examples=(?:examples\()?(\d+)"
        budgets = [int(number) for text in settings for number in re.findall(budget, text)]
        if budgets and not any(re.search(r"mark\.(slow|engine|gpu|realnodes)", text) for text in written):
            found[node.name] = budgets[0]
    marks = ast.unparse(named["pytestmark"]) if "pytestmark" in named else ""
    return {} if re.search(r"mark\.(slow|engine|gpu|realnodes)", marks) else found


FUZZERS = list(rows(page("development.md"), "## Fuzzers"))


@pytest.mark.parametrize("row", FUZZERS, ids=lambda row: row[0])
def test_each_fuzzer_is_in_make_test_with_its_budget(row: list[str]) -> None:
    _, tests, examples = row
    path, test = quoted(tests)[0].split("::")
    assert _budgets(ROOT / path)[test] == int(examples)


def test_what_is_to_be_fuzzed_is() -> None:
    assert {"frames", "records", "templates", "responses", "status patches"} <= {row[0] for row in FUZZERS}


def test_a_fuzzer_that_is_slow_does_not_count(tmp_path: Path) -> None:
    text = "BUDGET = settings(max_examples=7)\n@BUDGET\n{0}@given(x)\ndef test_a(x): ...\n"
    (tmp_path / "a.py").write_text(text.format(""))
    assert _budgets(tmp_path / "a.py") == {"test_a": 7}
    (tmp_path / "b.py").write_text(text.format("@pytest.mark.slow\n"))
    assert _budgets(tmp_path / "b.py") == {}
