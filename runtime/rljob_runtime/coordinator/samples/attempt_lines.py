"""Attempt lines: the attempts of a running job's store as lines of JSON, in answers of bounded size.

The coordinator holds its store alone, so every reader goes through the store's thread. An answer is read in parts, and
the coordinator's own work runs between them. Lines are written in another thread.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rljob_runtime.coordinator.core.async_utils import in_daemon_thread
from rljob_runtime.coordinator.samples.attempt_rows import Place, Row, Wanted, part
from rljob_runtime.coordinator.store.store_thread import StoreAccess


class NoStore(Exception):
    """The coordinator has its store not open: it starts, or it ends."""


class AttemptLines:
    """Answers from the store of a job, while `reading` is open."""

    def __init__(self) -> None:
        self._store: StoreAccess | None = None

    @contextmanager
    def reading(self, store: StoreAccess) -> Iterator[None]:
        """Answer from this store while the context is open. Leave it before the store is closed."""
        self._store = store
        try:
            yield
        finally:
            self._store = None

    async def after(self, place: Place, wanted: Wanted, most: int) -> bytes:
        """Return lines of the rows after a place: `most` bytes, or one line that is longer; none at the end.

        Raises `NoStore` and `sqlite3.Error`."""
        text = bytearray()
        while rows := await self._part(wanted, place):
            for line in await in_daemon_thread(partial(_lines, rows), "attempt-lines"):
                if text and len(text) + len(line) > most:
                    return bytes(text)
                text += line
            place = Place.of(rows[-1])
        return bytes(text)

    async def _part(self, wanted: Wanted, place: Place) -> list[Row]:
        if self._store is None:
            raise NoStore
        return await self._store.do(partial(part, wanted=wanted, after=place))


def _lines(rows: Sequence[Row]) -> list[bytes]:
    return [line_of(row) for row in rows]


def line_of(row: Row) -> bytes:
    """Return the line of a row, for `row_of`."""
    return json.dumps(row, default=_text, separators=(",", ":")).encode() + b"\n"


def _text(blob: bytes) -> str:
    return base64.b64encode(blob).decode()


def row_of(line: str) -> Row:
    """Return the row of a line. Raises `ValueError` for a line that is none."""
    try:
        row: Any = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or "attempt" not in row:
        raise ValueError(f"{line[:80]!r} is no line of an attempt")
    blobs = {name: base64.b64decode(row[name]) for name in ("tokens", "logprobs") if isinstance(row.get(name), str)}
    return row | blobs
