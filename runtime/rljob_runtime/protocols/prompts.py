"""Prompt source: the data set of a job, with the model's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rljob_runtime.protocols.trajectory import Cursor, PromptKey


class PromptsNotUsable(Exception):
    """The prompts cannot be read. The message says where, and what would be right. Ends the job."""


class PromptRecord(Protocol):
    """A prompt as the coordinator needs it; `rljob_runtime.data.Prompt` implements it."""

    @property
    def token_ids(self) -> Sequence[int]: ...


class PromptSource(Protocol):
    """Draws prompts. Pure: the same seed and cursor give the same prompts. "" names the only source of a job."""

    def draw(self, cursor: Cursor, count: int, source: str = "") -> tuple[tuple[PromptKey, ...], Cursor]:
        """Return the next `count` prompts of a source and the cursor after them; continue into the next epoch.

        Blocks while records are made, so the event loop must use `take`.
        """
        ...

    async def take(self, cursor: Cursor, count: int, source: str = "") -> tuple[tuple[PromptKey, ...], Cursor]:
        """Draw as `draw` does, but yield to other tasks meanwhile."""
        ...

    def prompt(self, key: PromptKey) -> PromptRecord:
        """Return a prompt that was drawn, or one of an evaluation."""
        ...

    def evaluation_prompts(self, name: str) -> Sequence[int]:
        """Return the records of an evaluation's prompts. They are the same each time."""
        ...

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Return a response as text without special tokens, as rewards receive it."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Token ids at which generation ends."""
        ...

    @property
    def skipped(self) -> int:
        """Number of unusable records that were skipped."""
        ...

    @property
    def overlaps(self) -> Mapping[str, int]:
        """Prompts of each evaluation that training has too, where there are some."""
        ...
