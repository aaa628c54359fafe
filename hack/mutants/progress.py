"""Progress: which mutants an interrupted run has caught, so that the next run goes on behind them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from .mutant import Mutant


class Progress:
    """A file with the caught mutants of one state of the tree. Another state begins with none."""

    def __init__(self, file: Path, state: str) -> None:
        self._file, self._state = file, state
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        self._caught: list[str] = known["caught"] if known.get("state") == state else []

    def left(self, mutants: Iterable[Mutant]) -> list[Mutant]:
        """Return the mutants that were not caught."""
        caught = set(self._caught)
        return [mutant for mutant in mutants if mutant.name not in caught]

    def add(self, mutant: Mutant) -> None:
        self._caught.append(mutant.name)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps({"state": self._state, "caught": self._caught}), encoding="utf-8")
        written.replace(self._file)

    def end(self) -> None:
        """Forget all: the run is complete, and the next one tries every mutant again."""
        self._file.unlink(missing_ok=True)


def state_of(root: Path, parts: Iterable[str]) -> str:
    """Return a digest of the files below some paths of a tree. Bytecode does not count."""
    digest = hashlib.sha256()
    for part in sorted(parts):
        for file in sorted(path for path in [root / part, *(root / part).rglob("*")] if path.is_file()):
            if file.suffix != ".pyc":
                digest.update(f"{file.relative_to(root)}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
