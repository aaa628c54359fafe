"""Data errors: faults of prompts, with their location."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class DataError(ValueError):
    """The prompts cannot be used.

    The message names the file, the record and the expected form.
    """


@dataclass(frozen=True)
class BadRecord:
    """A record that cannot be used.

    `where` is "line 7" or "record 7". `tokens` is the number of tokens of a prompt that is too long.
    """

    index: int
    where: str
    reason: str
    tokens: int | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


def one_line(error: Exception, most: int = 200) -> str:
    """Return an error as one line of at most `most` characters: it may contain a complete text."""
    return " ".join(str(error).split())[:most] or type(error).__name__


SHOWN = 10
"""Bad records that a message lists. Further ones are counted."""


def too_many(name: str, bad: Sequence[BadRecord], total: int) -> DataError:
    """Return the error for bad records among `total` that must not be skipped."""
    tokens = [record.tokens for record in bad if record.tokens is not None]
    if len(tokens) == len(bad) > 1:
        longest = max(tokens)
        count = f"{len(bad)} of {total} prompts are longer than spec.data.maxPromptTokens; the longest has {longest}"
        cure = f"Set it to {longest} or more, or set spec.data.onInvalidRecord: Skip to leave them out"
        return DataError(f"{name}: {count}. {cure}")
    listed = "; ".join(map(str, bad[:SHOWN]))
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    count = "1 bad record" if len(bad) == 1 else f"{len(bad)} bad records"
    advice = "Repair them, or set spec.data.onInvalidRecord: Skip to leave them out"
    return DataError(f"{name}: {count}: {listed}{more}. {advice}")
