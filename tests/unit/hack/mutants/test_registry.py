"""The mutants of this tree: each fits the code, stands beside the tests of its package, and names tests that exist."""

from __future__ import annotations

import ast
import json
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from hack.loop.choice import MIRRORS
from hack.mutants import BadMutant, Mutant
from hack.mutants.application import apply
from hack.mutants.registry import choose, every, registered
from hack.mutants.targets import file_of
from tests.support.paths import ROOT

LINES = 400
"""Of a file of mutants, at most."""


@cache
def source(module: str) -> str:
    return (ROOT / file_of(module, ROOT)).read_text(encoding="utf-8")


@cache
def mutated(mutant: Mutant) -> str:
    return apply(mutant, source(mutant.module))


@cache
def defined(file: str) -> frozenset[str]:
    """The names of a test file's functions and classes, and those that it assigns, as for a state machine's tests."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return frozenset(names)


def package(mutant: Mutant) -> str:
    """The package below a root: `rljob_runtime.relay`; a root's own files are a package too. The API is one, and so are
    the benchmarks."""
    root, *folders = mutant.module.split(".")[:-1]
    return root if root in ("rljob_api", "rljob_bench") else ".".join([root, *folders][:2])


def beside(module: str) -> Path:
    """The folder of the tests of a module: the nearest one that mirrors its package."""
    root, *folders = module.split(".")[:-1]
    folder = Path("tests/unit", *MIRRORS[root], *folders)
    while not (ROOT / folder).is_dir():
        folder = folder.parent
    return folder


@pytest.mark.parametrize("mutant", every(), ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_and_its_tests_exist(mutant: Mutant) -> None:
    """A change that moves one is noticed immediately, and not when all mutants are tried."""
    mutated(mutant)
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert not name or name.partition("[")[0].rpartition("::")[2] in defined(file), test


def test_a_mutant_uses_no_undefined_name(tmp_path: Path) -> None:
    """It would fail by itself, whatever its tests assert."""
    for number, mutant in enumerate(every()):
        (tmp_path / f"{number}.py").write_text(mutated(mutant), encoding="utf-8")
    command = ("ruff", "check", "--isolated", "--target-version=py311", "--select=F821", "--output-format=json")
    found = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    mutants = [*every()]
    assert [(mutants[int(Path(one["filename"]).stem)].name, one["message"]) for one in json.loads(found.stdout)] == []


def test_mutants_have_names_of_their_own() -> None:
    assert [name for name, times in Counter(mutant.name for mutant in every()).items() if times > 1] == []


def test_a_mutant_stands_beside_the_tests_of_its_package() -> None:
    found = {(mutant.name, str(file.parent)) for file, mutants in registered().items() for mutant in mutants}
    assert found == {(mutant.name, str(beside(mutant.module))) for mutant in every()}


def test_files_of_mutants_stay_short() -> None:
    lines = {str(file): len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in registered()}
    assert {file: number for file, number in lines.items() if number > LINES} == {}


def test_there_are_not_fewer_than_there_were() -> None:
    assert len(every()) >= 550


def test_50_of_them_are_canaries() -> None:
    assert sum(mutant.canary for mutant in every()) == 50


def test_every_package_that_has_mutants_has_a_canary() -> None:
    assert {package(mutant) for mutant in every()} == {package(mutant) for mutant in every() if mutant.canary}


def test_mutants_are_chosen_by_name_by_package_and_as_canaries() -> None:
    assert choose() == every()
    assert [one.name for one in choose(names=["a relay accepts an older chain"])] == ["a relay accepts an older chain"]
    assert {one.module.rpartition(".")[0] for one in choose(package="relay")} == {
        "rljob_runtime.relay",
        "rljob_runtime.relay.network",
    }
    assert {package(one) for one in choose(package="operator/policies")} == {"rljob_operator.policies"}
    assert choose(canaries=True) == tuple(one for one in every() if one.canary)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"names": ["no such name"]}, "no mutant named no such name"),
        ({"package": "elsewhere"}, "no mutant is about elsewhere; a folder of tests/unit"),
    ],
)
def test_a_choice_of_nothing_is_refused(choice: dict, message: str) -> None:
    with pytest.raises(BadMutant, match=message):
        choose(**choice)
