"""Round files: a JSONL file for each round in a folder of the job, written completely or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_NAME = re.compile(r"round-(\d{6,})\.jsonl")


class RoundFiles:
    """The files below `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, number: int) -> Path:
        """Return the path of a round's file."""
        return self.path / f"round-{number:06d}.jsonl"

    def rounds(self) -> list[int]:
        """Return the rounds that have a file, rising. Raises `OSError` for an unreadable folder."""
        if not self.path.exists():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted(int(name.group(1)) for name in found if name is not None)

    def write_lines(self, number: int, lines: Iterable[str], keep: int) -> None:
        """Write a round's file completely or not at all, and keep those of the newest `keep` rounds.

        Files of later rounds are deleted too: a rewind has abandoned their rounds. Raises `OSError`."""
        self.path.mkdir(parents=True, exist_ok=True)
        fresh = self.file(number).with_suffix(".new")
        try:
            with fresh.open("w", encoding="utf-8", errors="backslashreplace") as file:
                for line in lines:
                    file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.file(number))
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        rounds = self.rounds()
        oldest = self.oldest([one for one in rounds if one <= number], keep)
        for other in rounds:
            if other > number or other < oldest:
                self.file(other).unlink(missing_ok=True)

    def oldest(self, rounds: Sequence[int], keep: int) -> int:
        """Return the lowest round whose file stays. `rounds`: those with a file, rising."""
        return rounds[-1] - keep + 1
