"""Errors: what is wrong with a trace, by file and line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


class TraceError(ValueError):
    """A trace or a generator's parameters cannot be used. The message names the place and what would be right."""


@dataclass(frozen=True)
class BadRow:
    """An unusable row; lines count from 1."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass
class Findings:
    """A reader's findings: skipped rows and remarks.

    Without `skip_bad` the first unusable row raises `TraceError`: a trace with gaps is a different trace, so skipping
    is a decision of the caller."""

    skip_bad: bool = False
    bad: list[BadRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, row: BadRow) -> None:
        if not self.skip_bad:
            raise TraceError(str(row))
        self.bad.append(row)
