"""Errors: what is wrong with a trace, by file and line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


class TraceError(ValueError):
    """A trace or a generator's parameters cannot be used. The message names the place and what would be right."""


@dataclass
class Findings:
    """A reader's findings: skipped rows and remarks.

    Without `skip_bad` the first unusable row raises `TraceError`: a trace with gaps is a different trace, so skipping
    is a decision of the caller."""

    skip_bad: bool = False
    bad: list[str] = field(default_factory=list)
    """Each with its file, its line from 1 and what is wrong."""
    notes: list[str] = field(default_factory=list)

    def refuse(self, path: Path, line: int, reason: str) -> None:
        fault = f"{path}:{line}: {reason}"
        if not self.skip_bad:
            raise TraceError(fault)
        self.bad.append(fault)
