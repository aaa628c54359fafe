"""Prompt sets: the sources of a job, each with its own order and cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_runtime.data.errors import BadRecord, DataError
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.prompts import PromptSet
from rljob_runtime.protocols.trajectory import Cursor, PromptKey


class PromptSets:
    """The sources of a job by name; a job with one source has it under "".

    Each method raises `DataError` as its source does.
    """

    def __init__(self, sets: Mapping[str, PromptSet]) -> None:
        self._sets = dict(sets)
        self._any = next(iter(self._sets.values()))

    def draw(self, cursor: Cursor, count: int, source: str = "") -> tuple[tuple[PromptKey, ...], Cursor]:
        """Draw the next `count` prompts of a source and return them with the next cursor of all."""
        keys, after = self._of(source).draw(cursor.of(source), count)
        return keys, cursor.moved(source, after, count)

    def prompt(self, key: PromptKey) -> Prompt:
        """Return a drawn prompt."""
        return self._of(key.source).prompt(key)

    def messages(self, key: PromptKey) -> tuple[Mapping[str, str], ...]:
        """Return a drawn prompt as chat messages."""
        return self._of(key.source).messages(key)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode a response to text without special tokens, as rewards receive it."""
        return self._any.decode(token_ids)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end generation."""
        return self._any.stop_token_ids

    @property
    def skipped(self) -> int:
        """Number of records skipped so far, of all sources."""
        return sum(one.skipped for one in self._sets.values())

    @property
    def skipped_records(self) -> tuple[BadRecord, ...]:
        """Records skipped so far, with their faults."""
        return tuple(record for one in self._sets.values() for record in one.skipped_records)

    def _of(self, source: str) -> PromptSet:
        if (found := self._sets.get(source)) is None:
            raise DataError(f"there is no prompt source {source!r}; the job has {', '.join(map(repr, self._sets))}")
        return found
