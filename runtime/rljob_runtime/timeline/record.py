"""Record: the intervals between two boundaries of a job, as a line of `timeline.jsonl`.

A reader skips lines that it cannot read: a crash may have cut one, and the oldest lines are deleted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FILE = "timeline.jsonl"
LEVELS = "episodes"
"""Name of a moment that is a sample of counters: its arguments are their values from then on."""


@dataclass(frozen=True)
class Interval:
    """What a row did. Times are in seconds since the epoch; a moment has no `until`."""

    row: str
    """`machine/process`, as `rollout-0/relay`."""
    name: str
    since: float
    until: float | None = None
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """The intervals that ended before a boundary and after the one before it.

    `lost`: further ones that were not kept."""

    round: int
    term: int
    intervals: tuple[Interval, ...]
    lost: int = 0

    def to_json(self) -> str:
        """Return one line without its end."""
        rows = [[one.row, one.name, _rounded(one.since), _rounded(one.until), one.args] for one in self.intervals]
        return json.dumps({"round": self.round, "term": self.term, "lost": self.lost, "intervals": rows})

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Read a line. Raises `ValueError` for anything else."""
        try:
            values = json.loads(line)
            intervals = tuple(Interval(*row) for row in values["intervals"])
            return cls(int(values["round"]), int(values["term"]), intervals, int(values.get("lost", 0)))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a record of a timeline: {error}") from None


def read_records(text: str) -> list[Record]:
    """Return the records of a file."""
    found = []
    for line in text.split("\n"):
        try:
            found.append(Record.from_json(line))
        except ValueError:
            continue
    return found


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
