"""Rows: from a row with named fields to a record with a prompt, an answer and other fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.data.errors import BadRecord, DataError

TextOrMessages = str | tuple[Mapping[str, str], ...]
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Record:
    """A usable record before tokenisation."""

    index: int
    where: str
    text_or_messages: TextOrMessages
    answer: Any
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fields:
    """Names of the fields with the prompt and the answer.

    A name with dots, as `reward_model.ground_truth`, is a path into objects, unless there is a field of that name.
    """

    prompt: str
    answer: str

    @property
    def names(self) -> tuple[str, str]:
        """Both names."""
        return self.prompt, self.answer

    def expect_in(self, name: str, columns: Sequence[str]) -> None:
        """Raise one `DataError` for all rows of a table that lacks a field. `name` is the table's."""
        for wanted, spec_field in zip(self.names, ("promptField", "answerField"), strict=True):
            if wanted not in columns and wanted.partition(".")[0] not in columns:
                there = f"it has {', '.join(columns)}; set {spec_field} to one of them" if columns else "it has none"
                raise DataError(f"{name} has no column {wanted!r}; {there}")

    def with_spelled_answer(self, row: Mapping[str, Any], spelled: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row with its answer as the file spells it: 1e-05 must not become another number."""
        if not isinstance(value_at(row, self.answer), float):
            return row
        return _replaced(row, self.answer, value_at(spelled, self.answer))


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """Return the field of a row; None if it is absent."""
    if name in row:
        return row[name]
    head, dot, rest = name.partition(".")
    inner = row.get(head)
    return value_at(inner, rest) if dot and isinstance(inner, Mapping) else None


def _replaced(row: Mapping[str, Any], name: str, value: Any) -> Mapping[str, Any]:
    if name in row:
        return {**row, name: value}
    head, _, rest = name.partition(".")
    return {**row, head: _replaced(row[head], rest, value)}


def expect_records(name: str, count: int) -> None:
    """Raise `DataError` for a source without records."""
    if not count:
        raise DataError(f"{name} is empty: there are no prompts to draw")


def parse_row(index: int, where: str, row: Mapping[str, Any], fields: Fields) -> Record | BadRecord:
    """Convert a row with named fields into a record."""
    found = {name: value_at(row, name) for name in fields.names}
    for name, value in found.items():
        if _is_missing(value):
            there = ", ".join(sorted(key for key in row if not _is_missing(row[key]))) or "none"
            return BadRecord(index, where, f"field {name!r} is missing (fields: {there})")
    prompt, answer = found[fields.prompt], found[fields.answer]
    if isinstance(prompt, list):
        if problem := _check_messages(prompt):
            return BadRecord(index, where, f"field {fields.prompt!r}: {problem}")
        prompt = tuple({"role": message["role"], "content": message["content"]} for message in prompt)
    elif not isinstance(prompt, str):
        return BadRecord(
            index, where, f"field {fields.prompt!r} is {kind_of(prompt)}; text or a list of messages is right"
        )
    elif not prompt.strip():
        return BadRecord(index, where, f"field {fields.prompt!r} is empty")
    if (problem := _check_answer(answer)) is not None:
        return BadRecord(index, where, f"field {fields.answer!r} is {problem}")
    rest = {key: value for key, value in row.items() if key not in fields.names}
    return Record(index, where, prompt, str(answer), rest)


def _check_answer(answer: object) -> str | None:
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        return f"{kind_of(answer)}; text or a number would be right"
    if isinstance(answer, float) and not math.isfinite(answer):
        return f"{answer}; a finite number would be right"
    if not str(answer).strip() and answer:
        return "blank; an answer, or empty text for none, is right"
    return None


def _is_missing(value: object) -> bool:
    """Return whether a value is null, or NaN, which pandas uses for a missing value."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _check_messages(messages: list[Any]) -> str | None:
    if not messages:
        return "no messages"
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return f"message {place} is no object with role and content"
        if message.get("role") not in ROLES:
            return f"message {place} has role {message.get('role')!r}; one of {', '.join(ROLES)} would be right"
    return None


def kind_of(value: object) -> str:
    """Return what a value is, in JSON's words."""
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        bytes: "bytes",
        type(None): "null",
    }
    return names.get(type(value), f"of type {type(value).__name__}")
