"""Prompt: one record, ready to be generated from.

It is light to import, because reward workers import it too.
"""

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
    """Number of its record in the source, from 0. Skipped records count."""
    text_or_messages: str | tuple[Mapping[str, str], ...]
    """Text, or chat messages with `role` and `content`, as in the source."""
    token_ids: Sequence[int]
    """Input tokens of the model, with template and system prompt. An array of 32 bits each: a tuple takes nine times as
    much memory."""
    answer: Any = None
    """The reference answer: text from files, any value from a generator."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The other fields of the record."""
    source: str = ""
    """Name of its source, where the job has several."""

    @property
    def question(self) -> str:
        """The text, or the content of the last message."""
        if isinstance(self.text_or_messages, str):
            return self.text_or_messages
        return self.text_or_messages[-1]["content"]
