"""Where prompts come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rljob_runtime.protocols.trajectory import Cursor, PromptKey


class PromptsNotUsable(Exception):
    """The prompts cannot be read: the message says where and what would be right. Ends the job."""


class PromptRecord(Protocol):
    """What the coordinator needs of a prompt; `rljob_runtime.data.Prompt` is one."""

    @property
    def token_ids(self) -> Sequence[int]: ...


class PromptSource(Protocol):
    """The data set with the model's tokenizer. Pure: the same seed and cursor draw the same prompts."""

    def draw(self, cursor: Cursor, count: int) -> tuple[tuple[PromptKey, ...], Cursor]:
        """The next `count` prompts and the cursor after them; goes on into the next epoch. Takes as long as it takes to
        make the records: not for the event loop."""
        ...

    async def take(self, cursor: Cursor, count: int) -> tuple[tuple[PromptKey, ...], Cursor]:
        """As `draw`; others have their turns meanwhile."""
        ...

    def prompt(self, key: PromptKey) -> PromptRecord:
        """A prompt that was drawn."""
        ...

    async def decode(self, token_ids: Sequence[int]) -> str:
        """A response as text, special tokens left out: what rewards see."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens at which generation ends."""
        ...

    @property
    def skipped(self) -> int:
        """Records that could not be used and were skipped."""
        ...
