"""Prompts kept in memory, within a bound in bytes: what is drawn is asked for again while its round lasts."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from rljob_runtime.data.errors import BadRecord
from rljob_runtime.data.prompt import Prompt

MOST_BYTES = 256 << 20
"""65,536 prompts of 900 tokens."""
TOKEN_BYTES = 4
PROMPT_BYTES = 512
"""Of one that holds nothing, and of its place here."""


class PromptMemory:
    """Looks prompts up by the number of their record, and keeps the last ones used. `prepare` makes one; `most`: bytes
    that all of them may take, by `bytes_of`."""

    def __init__(self, prepare: Callable[[int], Prompt | BadRecord], most: int = MOST_BYTES) -> None:
        self._prepare = prepare
        self._most = most
        self._kept: OrderedDict[int, tuple[Prompt | BadRecord, int]] = OrderedDict()
        self.bytes = 0
        """Of what is kept."""

    def __call__(self, index: int) -> Prompt | BadRecord:
        """The prompt of that record, or what is wrong with it."""
        if (kept := self._kept.get(index)) is not None:
            self._kept.move_to_end(index)
            return kept[0]
        found = self._prepare(index)
        size = bytes_of(found)
        self._kept[index] = found, size
        self.bytes += size
        while self.bytes > self._most and len(self._kept) > 1:
            _, (_, freed) = self._kept.popitem(last=False)
            self.bytes -= freed
        return found


def bytes_of(found: Prompt | BadRecord) -> int:
    """About what it takes in memory. What it shares with its source is counted too: not every source keeps it."""
    if isinstance(found, BadRecord):
        return PROMPT_BYTES + _size(found.reason)
    held = (found.text_or_messages, found.answer, found.metadata)
    return PROMPT_BYTES + TOKEN_BYTES * len(found.token_ids) + sum(map(_size, held))


def _size(value: Any) -> int:
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(_size(key) + _size(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(_size, value))
    return sys.getsizeof(value)
