"""The canaries: forty mutants that stand for all."""

from __future__ import annotations

from tests.sabotage.canaries import CANARIES
from tests.sabotage.mutants import MUTANTS, Mutant
from tests.support.paths import ROOT

NAMES = [name for subject in CANARIES.values() for name in subject]


def package(mutant: Mutant) -> str:
    """The folder below a root: `rljob_runtime/relay`; a root's own files are a package too. The API is one, and so are
    the benchmarks."""
    root, *folders = mutant.file.split("/")[1:-1]
    return root if root in ("rljob_api", "rljob_bench") else "/".join([root, *folders][:2])


def test_there_are_forty_of_them() -> None:
    assert len(set(NAMES)) == len(NAMES) == 40


def test_each_is_a_mutant() -> None:
    assert set(NAMES) <= {mutant.name for mutant in MUTANTS}


def test_every_package_that_has_mutants_has_a_canary() -> None:
    assert {package(mutant) for mutant in MUTANTS} == {package(mutant) for mutant in MUTANTS if mutant.name in NAMES}


def test_the_line_of_every_mutant_is_there_once() -> None:
    """A change that moves one is noticed at once, and not when all mutants are tried."""
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in {mutant.file for mutant in MUTANTS}}
    lost = {mutant.name: texts[mutant.file].count(mutant.line) for mutant in MUTANTS}
    assert {name: times for name, times in lost.items() if times != 1} == {}


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
