"""Progress: which mutants an interrupted run has caught, so that the next run goes on behind them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hack.resumable import Resumable

from .mutant import Mutant


class Progress:
    """A file with the caught mutants of one state of the tree. Another state begins with none."""

    def __init__(self, file: Path, state: str) -> None:
        self._caught = Resumable(file, state)

    def left(self, mutants: Iterable[Mutant]) -> list[Mutant]:
        """Return the mutants that were not caught."""
        caught = set(self._caught.entries)
        return [mutant for mutant in mutants if mutant.name not in caught]

    def add(self, mutant: Mutant) -> None:
        self._caught.add(mutant.name)

    def end(self) -> None:
        """Forget all: the run is complete, and the next one tries every mutant again."""
        self._caught.forget()
