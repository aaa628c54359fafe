"""What can be wrong with a trace, in words that name file and line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


class TraceError(ValueError):
    """A trace or a generator's parameters cannot be used. The message names the place and says what would be right."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used; lines count from 1."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass
class Findings:
    """What a reader found: rows that it skipped, and things that a reader of figures should know.

    Without `skip_bad` the first bad row raises `TraceError`: a trace with holes is a different trace, so leaving rows
    out is asked for, never assumed.
    """

    skip_bad: bool = False
    bad: list[BadRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, row: BadRow) -> None:
        if not self.skip_bad:
            raise TraceError(str(row))
        self.bad.append(row)
