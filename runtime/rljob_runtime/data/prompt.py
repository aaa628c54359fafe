"""One prompt. Light to import: reward workers know it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """A record of the data set, ready to be generated from.

    Example: `Prompt(7, "What is 2 + 2?", array("i", (1, 284, 29, 5)), "4", {"level": 1})`
    """

    index: int
    """Its record's number in the source, from 0, counting records that were skipped too."""
    text_or_messages: str | tuple[Mapping[str, str], ...]
    """As the source has it: plain text, or chat messages with `role` and `content`."""
    token_ids: Sequence[int]
    """What the model is given: template and system prompt included. An array of 32 bits each: a tuple takes nine times
    as much."""
    answer: Any = None
    """The reference answer: text from files, whatever the task has from a generator."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The record's other fields."""

    @property
    def question(self) -> str:
        """The plain text, or the content of the last message."""
        if isinstance(self.text_or_messages, str):
            return self.text_or_messages
        return self.text_or_messages[-1]["content"]
