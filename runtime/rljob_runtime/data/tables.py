"""Table files: Parquet, CSV, Arrow and JSON lists of records, besides JSONL."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_runtime.data.errors import BadRecord, DataError, one_line
from rljob_runtime.data.rows import Fields, Record, expect_records, parse_row

if TYPE_CHECKING:
    import pyarrow


class Format(StrEnum):
    """Format of a file with records."""

    JSONL = "JSONL"
    JSON = "JSON"
    CSV = "CSV"
    PARQUET = "Parquet"
    ARROW = "Arrow"


_MAGIC = {b"PAR1": Format.PARQUET, b"ARROW1": Format.ARROW}
_ARROW_STREAM = b"\xff\xff\xff\xff"
"""First bytes of a stream, which has no magic."""
_SUFFIXES = {
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".feather": Format.ARROW,
}
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}
LONGEST_CELL = 64 << 20
"""Characters of a cell of a CSV file; Python's own limit of 131,072 is shorter than some prompts."""


def format_of(path: Path, head: bytes) -> Format:
    """Return the format of a file, by its first bytes and then by its name.

    Raises `DataError` for a compressed file.
    """
    for magic, tool in _PACKED.items():
        if head.startswith(magic):
            raise DataError(f"is compressed with {tool}; unpack it first, or store it as Parquet")
    for magic, found in _MAGIC.items():
        if head.startswith(magic):
            return found
    suffix = path.suffix.lower()
    named = _SUFFIXES.get(suffix, Format.JSONL)
    if named not in _MAGIC.values() or not head or (suffix == ".arrow" and head.startswith(_ARROW_STREAM)):
        return named
    raise DataError(f"is no {named} file: it begins with {head[:4]!r}")


class TableRecords:
    """Rows of an Arrow table, converted on access. The table has both columns."""

    checked_ahead = True

    def __init__(self, name: str, rows: Any, fields: Fields) -> None:
        """`rows` is a `datasets.Dataset`, or has its length and its access by number. Raises `DataError`."""
        fields.expect_in(name, rows.column_names)
        expect_records(name, len(rows))
        self.name = name
        self._rows = rows
        self._fields = fields

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Record | BadRecord:
        where = f"record {index}"
        try:
            row = self._rows[index]
        except (OSError, ValueError) as error:
            return BadRecord(index, where, f"cannot be read: {error}")
        return parse_row(index, where, row, self._fields)


def read_arrow(name: str, path: Path, kind: Format, fields: Fields) -> TableRecords:
    """Read a Parquet or Arrow file into memory. Raises `DataError`."""
    import datasets
    import pyarrow

    try:
        table = _table(path, kind)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{name} cannot be read as {kind}: {one_line(error)}") from error
    return TableRecords(name, datasets.Dataset(table), fields)


def _table(path: Path, kind: Format) -> pyarrow.Table:
    import pyarrow
    import pyarrow.parquet

    if kind is Format.PARQUET:
        return pyarrow.parquet.read_table(path)
    with pyarrow.memory_map(str(path)) as source:
        try:
            return pyarrow.ipc.open_file(source).read_all()
        except pyarrow.ArrowInvalid:
            source.seek(0)
            return pyarrow.ipc.open_stream(source).read_all()


def read_csv(name: str, path: Path, fields: Fields) -> list[Record | BadRecord]:
    """Read a CSV file with a header. Every cell is text, so an answer keeps its spelling.

    Tabs separate the cells of a file called `.tsv`. Raises `DataError`.
    """
    csv.field_size_limit(LONGEST_CELL)
    records: list[Record | BadRecord] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
            fields.expect_in(name, reader.fieldnames or ())
            for row in reader:
                records.append(_parse_cells(len(records), reader.line_num, row, fields))
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8: byte 0x{error.object[error.start]:02x}; store it as UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{name}: is no CSV after line {reader.line_num}: {error}") from error
    return records


def _parse_cells(index: int, line: int, row: Mapping[Any, Any], fields: Fields) -> Record | BadRecord:
    where = f"line {line}"
    if None in row:
        return BadRecord(index, where, f"has {len(row[None])} cells more than the header")
    return parse_row(index, where, row, fields)


def read_json(name: str, path: Path, fields: Fields) -> list[Record | BadRecord]:
    """Read a JSON file with a list of objects. Raises `DataError`."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
        # Read twice, since an answer keeps its spelling and other numbers do not.
        rows, spelled = (json.loads(text, parse_constant=float, parse_float=parse) for parse in (float, str))
    except (UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{name} cannot be read as JSON: {one_line(error)}") from error
    except ValueError as error:
        raise DataError(f"{name} is no JSON: {one_line(error)}; for an object a line, name it .jsonl") from error
    if not isinstance(rows, list):
        found = f"an object with {', '.join(sorted(rows)[:8])}" if isinstance(rows, dict) else "one value"
        raise DataError(f"{name} is {found}; a list of objects would be right, or an object a line in a .jsonl file")
    return list(_objects(rows, spelled, fields))


def _objects(rows: Sequence[Any], spelled: Sequence[Any], fields: Fields) -> Iterator[Record | BadRecord]:
    for index, (row, as_written) in enumerate(zip(rows, spelled, strict=True)):
        where = f"record {index}"
        if not isinstance(row, dict):
            yield BadRecord(index, where, f"is no object but {type(row).__name__}; an object would be right")
        else:
            yield parse_row(index, where, fields.with_spelled_answer(row, as_written), fields)
