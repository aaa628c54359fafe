"""How a bad spec is told: every mistake at once, each with the field's path, the value and what would be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """One mistake. `path` is written as in YAML, e.g. `spec.rewards[0].kind`; `message` says what would be right."""

    path: str
    value: object
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {show(self.value)} {self.message}"


class InvalidSpec(ValueError):
    """The object cannot be an RLJob. `errors` holds every mistake found, in the order of the file where possible."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors: list[FieldError] = list(errors)
        super().__init__("; ".join(str(error) for error in self.errors))


class _Absent:
    """The value of a field that is not there."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


def show(value: object, limit: int = 80) -> str:
    """The value as a person would write it, short enough for one line."""
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
