"""Registry: every mutant of the tree, from the files ``mutants*.py`` beside the tests of each package."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from pathlib import Path

from .mutant import BadMutant, Mutant

ROOT = Path(__file__).resolve().parents[2]
TESTS = Path("tests/unit")


def registered() -> dict[Path, tuple[Mutant, ...]]:
    """Return the mutants by the file that lists them, relative to the root."""
    found: dict[Path, tuple[Mutant, ...]] = {}
    for file in sorted((ROOT / TESTS).rglob("mutants*.py")):
        path = file.relative_to(ROOT)
        found[path] = importlib.import_module(".".join(path.with_suffix("").parts)).MUTANTS
    return found


def every() -> tuple[Mutant, ...]:
    return tuple(mutant for mutants in registered().values() for mutant in mutants)


def choose(names: Collection[str] = (), package: str = "", canaries: bool = False) -> tuple[Mutant, ...]:
    """Choose by name, by package or for ``make test``; without a choice, all. Raises `BadMutant` if there is none.

    A package is a folder that tests stand in: ``relay``, ``policies``, or ``operator/policies``.
    """
    mutants = [
        mutant
        for file, listed in registered().items()
        if not package or f"/{package}/" in f"/{file.parent.relative_to(TESTS)}/"
        for mutant in listed
    ]
    if unknown := set(names) - {mutant.name for mutant in mutants}:
        raise BadMutant(f"there is no mutant named {', '.join(sorted(unknown))}")
    chosen = tuple(one for one in mutants if (not names or one.name in names) and (one.canary or not canaries))
    if not chosen:
        raise BadMutant(f"no mutant is about {package}; a folder of {TESTS} with mutants below it would be right")
    return chosen
