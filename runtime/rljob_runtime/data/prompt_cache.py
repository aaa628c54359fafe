"""Prompt cache: keeps prompts in memory up to a number of bytes.

A prompt is read several times while its round lasts.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from rljob_runtime.data.errors import BadRecord
from rljob_runtime.data.prompt import Prompt

MOST_BYTES = 256 << 20
"""Enough for 65,536 prompts of 900 tokens."""
TOKEN_BYTES = 4
PROMPT_BYTES = 512
"""Bytes of an empty prompt and its cache entry."""


class PromptCache:
    """Least-recently-used cache of prompts by record number.

    `prepare` builds a prompt. `most` bounds the total of `bytes_of`.
    """

    def __init__(self, prepare: Callable[[int], Prompt | BadRecord], most: int = MOST_BYTES) -> None:
        self._prepare = prepare
        self._most = most
        self._kept: OrderedDict[int, tuple[Prompt | BadRecord, int]] = OrderedDict()
        self.bytes = 0
        """Total bytes of the entries."""

    def __call__(self, index: int) -> Prompt | BadRecord:
        """Return the prompt of a record, or its fault."""
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
    """Estimate the memory of a prompt.

    Memory that it shares with its source counts too, because not every source keeps it.
    """
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
