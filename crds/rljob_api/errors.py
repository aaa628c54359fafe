"""Errors of a spec: every mistake is reported together, with the field's path, its value and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

MOST_ERRORS = 32
"""Mistakes that are reported together. A bad spec may hold as many as it has characters."""


@dataclass(frozen=True)
class FieldError:
    """One mistake. `path` is written as in YAML, e.g. `spec.rewards[0].kind`; `message` says what would be right."""

    path: str
    value: object
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {show(self.value)} {self.message}"


class InvalidSpec(ValueError):
    """An object that is no valid RLJob.

    `errors` holds the mistakes, in the order of the file where possible: all of them, or the first `MOST_ERRORS` and a
    note that there are more.
    """

    def __init__(self, errors: Iterable[FieldError]) -> None:
        first = list(islice(errors, MOST_ERRORS + 1))
        if len(first) > MOST_ERRORS:
            first[-1] = FieldError("(file)", f"more than {MOST_ERRORS} mistakes", "were found; correct these first")
        self.errors: list[FieldError] = first
        super().__init__("; ".join(str(error) for error in first))


class _Absent:
    """The value of an absent field."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


def show(value: object, limit: int = 80) -> str:
    """Format a value as a person would write it, short enough for one line."""
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
