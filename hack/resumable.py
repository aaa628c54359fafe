"""Resumable run: keeps what it has done in a file, so that the next run over the same tree goes on behind it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TESTED = (
    "crds", "operator", "runtime", "bench", "envs", "hack", "charts", "examples", "docs", "tests", "pyproject.toml",
)  # fmt: skip
"""The parts of the tree that unit tests read."""


class Resumable:
    """A file with the JSON `entries` of one state of the tree. Another state begins with none."""

    def __init__(self, file: Path, state: str) -> None:
        self._file, self._state = file, state
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        self.entries: list[Any] = known["entries"] if known.get("state") == state and "entries" in known else []

    def add(self, entry: Any) -> None:
        """Append an entry, also to the file."""
        self.entries.append(entry)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps({"state": self._state, "entries": self.entries}), encoding="utf-8")
        written.replace(self._file)

    def forget(self) -> None:
        """Remove the file: the run is complete, and the next one begins with none."""
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
