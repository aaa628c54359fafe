"""Record sources: a file, a data set on disk or of the hub, a reasoning-gym task."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rljob_api.constants import claim_path
from rljob_api.spec.training import PromptDataset, PromptFile, ReasoningGym
from rljob_runtime.data.errors import BadRecord, DataError, one_line
from rljob_runtime.data.rows import Fields, Record, expect_records, kind_of, parse_row, value_at
from rljob_runtime.data.tables import Format, TableRecords, format_of, read_arrow, read_csv, read_json
from rljob_runtime.models.hub import HubError, snapshot

SHIPPED = "package://rljob/"
PROMPTS = "spec.data.prompts"
"""Where the spec names the source that training draws from."""
HUB = "hf://"
LONGEST_REASON = 300
"""Characters of an error of a data set's library, which names files."""


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
        expect_records(name, len(records))
        self.name = name
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record | BadRecord:
        return self._records[index]


def read_file(source: PromptFile, field: str = PROMPTS) -> RecordSource:
    """Read the records of a file: JSONL, JSON, CSV, Parquet or Arrow. `field` is the source's place in the spec.

    Raises `DataError` when the file cannot be read at all.
    """
    path = local_path(source.path)
    name = f"{field}.file {path}"
    if not path.exists():
        raise DataError(f"{name} does not exist")
    if not path.is_file():
        raise DataError(f"{name} is no file; a JSONL, JSON, CSV, Parquet or Arrow file would be right")
    fields = Fields(source.prompt_field, source.answer_field)
    try:
        with path.open("rb") as file:
            head = file.read(8)
        match _format(name, path, head):
            case Format.PARQUET | Format.ARROW as kind:
                return read_arrow(name, path, kind, fields)
            case Format.CSV:
                return InMemory(name, read_csv(name, path, fields))
            case Format.JSON:
                return InMemory(name, read_json(name, path, fields))
            case _:
                return InMemory(name, read_jsonl(path, fields))
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}") from error


def _format(name: str, path: Path, head: bytes) -> Format:
    try:
        return format_of(path, head)
    except DataError as error:
        raise DataError(f"{name} {error}") from None


def read_jsonl(path: Path, fields: Fields) -> list[Record | BadRecord]:
    """Read a file with a JSON object a line. Blank lines are skipped. Raises `OSError`."""
    records: list[Record | BadRecord] = []
    for number, offset, raw in _lines(path):
        records.append(_parse_line(len(records), number, offset, raw, fields))
    return records


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


def _parse_line(index: int, number: int, offset: int, raw: bytes, fields: Fields) -> Record | BadRecord:
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
        return BadRecord(index, where, f"{kind_of(row)} where a JSON object would be right")
    if _MAY_BE_HALF.search(raw) is not None and (problem := _check_characters(row)) is not None:
        return BadRecord(index, where, problem)
    if isinstance(value_at(row, fields.answer), float):
        row = fields.with_spelled_answer(row, json.loads(raw, parse_float=str, parse_constant=float))
    return parse_row(index, where, row, fields)


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


def open_dataset(source: PromptDataset, cache_dir: Path, field: str = PROMPTS) -> TableRecords:
    """Open a split of a data set: a folder, or one of the Hugging Face hub.

    A data set of the hub is downloaded into `cache_dir` once. Rows are read on access. Raises `DataError`.
    """
    if source.path.startswith(HUB):
        name = f"{field}.dataset {source.path}"
        path = _hub_folder(name, source.path.removeprefix(HUB), cache_dir)
    else:
        path = local_path(source.path)
        name = f"{field}.dataset {path}"
        if not path.exists():
            raise DataError(f"{name} does not exist")
    rows = _dataset(name, path, source, cache_dir)
    return TableRecords(name, rows, Fields(source.prompt_field, source.answer_field))


def _dataset(name: str, path: Path, source: PromptDataset, cache_dir: Path) -> Any:
    """Return a split that `save_to_disk` wrote, or that `load_dataset` reads from a folder of data files."""
    import datasets

    saved = (path / "state.json").exists() or (path / "dataset_dict.json").exists()
    if saved and source.config is not None:
        raise DataError(f"{name} was saved by save_to_disk, which keeps no config; leave config out")
    try:
        found = datasets.load_from_disk(str(path)) if saved else _load_dataset(str(path), source, cache_dir)
    except (OSError, ValueError, KeyError, IndexError, datasets.exceptions.DatasetsError) as error:
        right = "saved by save_to_disk" if saved else "saved by save_to_disk, and no folder of data files"
        raise DataError(f"{name} is no data set {right}: {one_line(error, LONGEST_REASON)}") from error
    if isinstance(found, datasets.DatasetDict):
        if source.split not in found:
            raise DataError(f"{name} has no split {source.split!r}; it has {', '.join(found)}")
        found = found[source.split]
    return found


def _hub_folder(name: str, repository: str, cache_dir: Path) -> Path:
    """Return the folder of a data set of the hub, downloaded once."""
    try:
        return snapshot(repository, cache_dir, kind="dataset")
    except HubError as error:
        raise DataError(f"{name}: {error}") from error


def _load_dataset(place: str, source: PromptDataset, cache_dir: Path) -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset(place, source.config, cache_dir=str(cache_dir / "datasets"))


class GymTask:
    """A reasoning-gym task.

    It is endless in practice, so records are generated when they are drawn. The same index gives the same record.
    """

    checked_ahead = False

    def __init__(self, source: ReasoningGym, seed: int, field: str = PROMPTS):
        import reasoning_gym

        self.name = f"{field}.reasoningGym {source.task}"
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


def local_path(path: str) -> Path:
    """Return the local path of a path in the spec.

    A claim is mounted at a fixed place, and some files come with the runtime.
    """
    if path.startswith(SHIPPED):
        return Path(__file__).with_name("shipped") / path.removeprefix(SHIPPED)
    claimed = claim_path(path)
    return Path(claimed[1] if claimed else path)
