"""Prompt cache: keeps the prompts of a job in memory, up to a number of bytes.

A prompt is read several times while its round lasts, by the event loop and by the thread of texts.
"""

from __future__ import annotations

import sys
import threading
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
    """Least-recently-used cache of prompts by their set and record number.

    `most` bounds the total of `bytes_of`. All sets of a job share one cache, so that this holds for the job.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, int], tuple[Prompt | BadRecord, int]] = OrderedDict()
        self._one_at_a_time = threading.Lock()
        self.bytes = 0
        """Total bytes of the entries."""

    def find(self, name: str, index: int, prepare: Callable[[int], Prompt | BadRecord]) -> Prompt | BadRecord:
        """Return the prompt of a record of the set `name`, or its fault. `prepare` builds one that is not kept."""
        with self._one_at_a_time:
            return self._find((name, index), prepare)

    def _find(self, key: tuple[str, int], prepare: Callable[[int], Prompt | BadRecord]) -> Prompt | BadRecord:
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept[0]
        found = prepare(key[1])
        size = bytes_of(found)
        self._kept[key] = found, size
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
