"""Sample files: a JSONL file for each round in `samples/`, beside `rounds.jsonl`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rljob_runtime.samples.record import Sample

FOLDER = "samples"
_NAME = re.compile(r"round-(\d{6,})\.jsonl")


class TornFile(ValueError):
    """A line of a file is no sample, and it is not the last one. The message names file, line and fault."""


class SampleFolder:
    """The samples below a job's folder."""

    def __init__(self, job: Path) -> None:
        self.path = job / FOLDER

    def file(self, number: int) -> Path:
        """Return the path of a round's file."""
        return self.path / f"round-{number:06d}.jsonl"

    def rounds(self) -> list[int]:
        """Return the rounds that have a file, rising. Raises `OSError` for an unreadable folder."""
        if not self.path.exists():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted(int(name.group(1)) for name in found if name is not None)

    def read(self, number: int) -> Iterator[Sample]:
        """Yield a round's samples.

        An incomplete last line is skipped. Raises `TornFile` for another bad line, and `OSError`.
        """
        path = self.file(number)
        lines = path.read_bytes().split(b"\n")
        for place, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                yield Sample.from_json(line.decode("utf-8"))
            except ValueError as error:
                if place == len(lines):  # a complete last line has an end, so that the last piece is empty
                    return
                raise TornFile(f"{path}: line {place}: {error}") from None

    def write(self, number: int, samples: Iterable[Sample], keep: int) -> None:
        """Write a round's file completely or not at all, and keep the newest `keep` files.

        Files of later rounds are deleted too: a rewind has abandoned their rounds. Raises `OSError`."""
        self.path.mkdir(parents=True, exist_ok=True)
        fresh = self.file(number).with_suffix(".new")
        try:
            with fresh.open("w", encoding="utf-8", errors="backslashreplace") as file:
                for sample in samples:
                    file.write(sample.to_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.file(number))
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        for other in self.rounds():
            if other > number or other <= number - keep:
                self.file(other).unlink(missing_ok=True)
