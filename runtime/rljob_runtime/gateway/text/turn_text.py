"""Turn text: what the gateway needs to know of a model's tokenizer and template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_runtime.gateway.text.tool_calls import ToolCall
from rljob_runtime.gateway.wire.fields import Json


@dataclass(frozen=True)
class TurnTokens:
    """A turn that was answered: the prompt's tokens, and those that the engine sampled."""

    prompt: Sequence[int]
    sampled: Sequence[int]


@dataclass(frozen=True)
class ReplyText:
    """What sampled tokens say. `malformed`: attempts at calls that are none."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    malformed: int = 0


class TurnText(Protocol):
    """Messages as tokens, and tokens as a message. Calls come from several threads."""

    def first(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[int]:
        """Return the prompt of a conversation in which no turn is known. Raises `GatewayError`."""
        ...

    def following(self, turn: TurnTokens, messages: Sequence[Json], tools: Sequence[Json]) -> list[int] | None:
        """Return a known turn's tokens and those of the messages after it.

        None if the template cannot go on from there, so that the conversation begins another branch. Raises
        `GatewayError`.
        """
        ...

    def reply(self, turn: TurnTokens, tools: Sequence[Json], calls: bool) -> ReplyText:
        """Return what a turn's sampled tokens say. `calls`: whether tool calls are sought."""
        ...
