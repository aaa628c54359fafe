"""Allowed differences: a YAML file that names each change that was meant, and why.

- place: names/metrics/coordinator/*   # where; `*` stands for any text, and the default for any place
  old: deferred
  new: deferred_prompts
  why: API names
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .differences import Difference

_KEYS = ("place", "old", "new", "why")
_ANY = "*"


class BadAllowance(ValueError):
    """The file cannot be used; the message says where and what would be right."""


@dataclass(frozen=True)
class Allowance:
    """One row. `place`, `old` and `new` are patterns."""

    place: str
    old: str
    new: str
    why: str

    def covers(self, difference: Difference) -> bool:
        """Tell whether the difference is meant."""
        pairs = ((self.place, difference.place), (self.old, difference.old), (self.new, difference.new))
        return all(_matches(pattern, text) for pattern, text in pairs)


def read(file: Path) -> list[Allowance]:
    """Read the rows of a file. Raises `BadAllowance`."""
    try:
        rows = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadAllowance(f"{file} cannot be read: {error}") from error
    if not isinstance(rows, list):
        raise BadAllowance(f"{file} holds {type(rows).__name__}; a list of rows with {', '.join(_KEYS)} would be right")
    return [_row(f"{file}, row {number}", row) for number, row in enumerate(rows, 1)]


def subtract(
    differences: Iterable[Difference], allowances: Sequence[Allowance]
) -> tuple[list[Difference], list[Allowance]]:
    """Return the differences that no row covers, and the rows that cover none."""
    left, used = [], set()
    for difference in differences:
        covering = [allowance for allowance in allowances if allowance.covers(difference)]
        used.update(covering)
        if not covering:
            left.append(difference)
    return left, [allowance for allowance in allowances if allowance not in used]


def _row(place: str, row: Any) -> Allowance:
    if not isinstance(row, dict):
        raise BadAllowance(f"{place}: {row!r}; a mapping with {', '.join(_KEYS)} would be right")
    if unknown := sorted(map(str, set(row) - set(_KEYS))):
        raise BadAllowance(f"{place}: {unknown[0]!r} is unknown; {', '.join(_KEYS)} would be right")
    for key in _KEYS[1:]:
        if row.get(key) in (None, ""):
            raise BadAllowance(f"{place}: {key} is missing; a text would be right, or {_ANY!r} for any")
    if row["why"] == _ANY:
        raise BadAllowance(f"{place}: why is {_ANY!r}; the reason of the change would be right")
    return Allowance(str(row.get("place", _ANY)), str(row["old"]), str(row["new"]), str(row["why"]))


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split(_ANY))), text, re.DOTALL) is not None
