"""Record sources: a JSONL file, a data set on disk, a reasoning-gym task.

A record has a prompt, an answer and other fields.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rljob_api.constants import claim_path
from rljob_api.spec_training import PromptDataset, PromptFile, ReasoningGym
from rljob_runtime.data.errors import BadRecord, DataError

TextOrMessages = str | tuple[Mapping[str, str], ...]
SHIPPED = "package://rljob/"
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Record:
    """A usable record before tokenisation."""

    index: int
    where: str
    text_or_messages: TextOrMessages
    answer: Any
    metadata: Mapping[str, Any] = field(default_factory=dict)


class RecordSource(Protocol):
    """Records by number.

    `checked_ahead` says that all records can be checked before the first draw.
    """

    name: str
    checked_ahead: bool

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record | BadRecord: ...


class InMemory:
    """Records that are all in memory."""

    checked_ahead = True

    def __init__(self, name: str, records: Sequence[Record | BadRecord]):
        if not records:
            raise DataError(f"{name} is empty: there are no prompts to draw")
        self.name = name
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record | BadRecord:
        return self._records[index]


def read_file(source: PromptFile) -> InMemory:
    """Read the records of a JSONL file.

    Blank lines are skipped. Raises `DataError` when the file cannot be read at all.
    """
    path = local_path(source.path)
    name = f"spec.data.prompts.file {path}"
    if not path.exists():
        raise DataError(f"{name} does not exist")
    if not path.is_file():
        raise DataError(f"{name} is no file; a JSONL file would be right, one JSON object a line")
    records: list[Record | BadRecord] = []
    try:
        for number, offset, raw in _lines(path):
            records.append(_parse_line(len(records), number, offset, raw, source))
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}") from error
    return InMemory(name, records)


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number from 1, byte offset, bytes) of every line that is not blank."""
    offset = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if number == 1 and raw.startswith(b"\xef\xbb\xbf"):
                raw, offset = raw[3:], 3
            if raw.strip():
                yield number, offset, raw
            offset += len(raw)


def _parse_line(index: int, number: int, offset: int, raw: bytes, source: PromptFile) -> Record | BadRecord:
    where = f"line {number}"
    try:
        row = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        byte = f"0x{raw[error.start]:02x} at byte {offset + error.start} of the file"
        return BadRecord(index, where, f"not UTF-8: {byte}")
    except json.JSONDecodeError as error:
        return BadRecord(index, where, f"not JSON: {error.msg} at column {error.colno}")
    except ValueError as error:  # an integer with more digits than Python parses
        return BadRecord(index, where, f"a number that cannot be read ({error}); text would be right")
    except RecursionError:
        return BadRecord(index, where, "not JSON that can be read: nested too deeply")
    if not isinstance(row, dict):
        return BadRecord(index, where, f"{_kind(row)} where a JSON object would be right")
    if _MAY_BE_HALF.search(raw) is not None and (problem := _check_characters(row)) is not None:
        return BadRecord(index, where, problem)
    if isinstance(row.get(source.answer_field), float):
        # The reference keeps the spelling of the file: 1e-05 must not become another number, nor 72.0 another text.
        row[source.answer_field] = json.loads(raw, parse_float=str, parse_constant=float)[source.answer_field]
    return parse_row(index, where, row, source.prompt_field, source.answer_field)


_MAY_BE_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def _check_characters(row: Mapping[str, Any]) -> str | None:
    """Return the fault of a row with half of a surrogate pair, which JSON can name but which is no text."""
    for name, value in row.items():
        try:
            json.dumps({name: value}, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"half of a surrogate pair, U+{ord(error.object[error.start]):04X}"
            return f"field {name!a} has {half}; both halves, or the character itself, would be right"
    return None


class StoredDataset:
    """A split of a data set that Hugging Face `datasets` saved to disk.

    Rows are read on access.
    """

    checked_ahead = True

    def __init__(self, source: PromptDataset):
        import datasets

        path = local_path(source.path)
        self.name = f"spec.data.prompts.dataset {path}"
        if not path.exists():
            raise DataError(f"{self.name} does not exist")
        try:
            found = datasets.load_from_disk(str(path))
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise DataError(f"{self.name} is no data set saved by save_to_disk: {error}") from error
        if isinstance(found, datasets.DatasetDict):
            if source.split not in found:
                raise DataError(f"{self.name} has no split {source.split!r}; it has {', '.join(found)}")
            found = found[source.split]
        for name in (source.prompt_field, source.answer_field):
            if name not in found.column_names:
                raise DataError(f"{self.name} has no column {name!r}; it has {', '.join(found.column_names)}")
        if not len(found):
            raise DataError(f"{self.name} is empty: there are no prompts to draw")
        self._rows = found
        self._source = source

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Record | BadRecord:
        where = f"record {index}"
        try:
            row = self._rows[index]
        except (OSError, ValueError) as error:
            return BadRecord(index, where, f"cannot be read: {error}")
        return parse_row(index, where, row, self._source.prompt_field, self._source.answer_field)


class GymTask:
    """A reasoning-gym task.

    It is endless in practice, so records are generated when they are drawn. The same index gives the same record.
    """

    checked_ahead = False

    def __init__(self, source: ReasoningGym, seed: int):
        import reasoning_gym

        self.name = f"spec.data.prompts.reasoningGym {source.task}"
        try:
            self._task = reasoning_gym.create_dataset(source.task, size=source.size, seed=seed, **source.config)
        except ValueError as error:
            raise DataError(f"{self.name}: {error}") from error
        except (AssertionError, TypeError) as error:
            raise DataError(f"{self.name}: config {source.config} does not fit the task: {error}") from error
        self._size = source.size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Record | BadRecord:
        try:
            entry = self._task[index]
        except Exception as error:  # the task may refuse its config for some of its records only
            return BadRecord(index, f"record {index}", f"the task makes none: {type(error).__name__}: {error}")
        return Record(index, f"record {index}", entry["question"], entry["answer"], entry["metadata"])


def parse_row(
    index: int, where: str, row: Mapping[str, Any], prompt_field: str, answer_field: str
) -> Record | BadRecord:
    """Convert a row with named fields into a record."""
    for name in (prompt_field, answer_field):
        if _is_missing(row.get(name)):
            there = ", ".join(sorted(key for key in row if not _is_missing(row[key]))) or "none"
            return BadRecord(index, where, f"field {name!r} is missing (fields: {there})")
    prompt = row[prompt_field]
    if isinstance(prompt, list):
        if problem := _check_messages(prompt):
            return BadRecord(index, where, f"field {prompt_field!r}: {problem}")
        prompt = tuple({"role": message["role"], "content": message["content"]} for message in prompt)
    elif not isinstance(prompt, str):
        return BadRecord(
            index, where, f"field {prompt_field!r} is {_kind(prompt)}; text or a list of messages is right"
        )
    elif not prompt.strip():
        return BadRecord(index, where, f"field {prompt_field!r} is empty")
    answer = row[answer_field]
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        return BadRecord(index, where, f"field {answer_field!r} is {_kind(answer)}; text or a number would be right")
    if isinstance(answer, float) and not math.isfinite(answer):
        return BadRecord(index, where, f"field {answer_field!r} is {answer}; a finite number would be right")
    if not str(answer).strip() and answer:
        return BadRecord(index, where, f"field {answer_field!r} is blank; an answer, or empty text for none, is right")
    rest = {key: value for key, value in row.items() if key not in (prompt_field, answer_field)}
    return Record(index, where, prompt, str(answer), rest)


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


def _kind(value: object) -> str:
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


def local_path(path: str) -> Path:
    """Return the local path of a path in the spec.

    A claim is mounted at a fixed place, and some files come with the runtime.
    """
    if path.startswith(SHIPPED):
        return Path(__file__).with_name("shipped") / path.removeprefix(SHIPPED)
    claimed = claim_path(path)
    return Path(claimed[1] if claimed else path)
