"""Stop strings: end a response at the token that completes one of them in the decoded text.

Engines only know tokens. A string may begin in one token and end in another, and it may begin before a move: then its
first tokens are in the prefix that another replica generated. So it is sought here, for every kind of engine. vLLM's
own search needs a tokenizer in the engine, and sees the new tokens only. The work is done in the engine's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from rljob_runtime.protocols import Refused
from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.rollout.engines.base import StepOutput

MARGIN = 8
"""Tokens of the window before those that the longest string may be spread over. The first one may lose a leading space
or the bytes before its own."""
INCOMPLETE = "\ufffd"
"""What a decoder writes for bytes that are no character yet."""

Decode = Callable[[Sequence[int]], str]


class ResponseText(Protocol):
    """The text of tokens, as rewards receive it."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode tokens without special ones."""
        ...


def no_text() -> ResponseText:
    """Refuse stop strings. Raises `Refused`."""
    raise Refused("the replica has no tokenizer, so it takes no stop strings")


class _Watch:
    """The end of one response's text."""

    def __init__(self, strings: Sequence[str], pieces: _Pieces, prefix: Iterable[int]) -> None:
        self._strings = strings
        self._last = frozenset(string[-1] for string in strings)
        self._pieces = pieces
        longest = max(len(string.encode()) for string in strings)
        self._window: deque[int] = deque((t for t in prefix if pieces.text(t)), maxlen=longest + MARGIN)

    def completed_by(self, token: int) -> bool:
        """Add a token; return whether it completes a string."""
        piece = self._pieces.text(token)
        if not piece:
            return False
        self._window.append(token)
        if INCOMPLETE not in piece and self._last.isdisjoint(piece):
            return False
        tokens = list(self._window)
        text = self._pieces.decode(tokens)
        if not (found := [string for string in self._strings if string in text]):
            return False
        # A string that the prefix has already ended nothing.
        before = self._pieces.decode(tokens[:-1])
        return any(text.count(string) > before.count(string) for string in found)


class _Pieces:
    """The characters that single tokens add."""

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self._texts: dict[int, str] = {}

    def text(self, token: int) -> str:
        """Return the characters of a token, some twice; empty for one without text.

        A decoder may drop the space before the first token, so it is decoded twice.
        """
        found = self._texts.get(token)
        if found is None:
            found = self._texts[token] = self.decode((token, token))
        return found


class StopStrings:
    """Stop strings of the requests in one engine. `open_text` is called for the first request that has some."""

    def __init__(self, open_text: Callable[[], ResponseText]) -> None:
        self._open_text = open_text
        self._watched: dict[str, _Watch] = {}

    @cached_property
    def _pieces(self) -> _Pieces:
        return _Pieces(self._open_text().decode)

    def open(self) -> None:
        """Open the text, unless it is open. Raises what `open_text` raises."""
        _ = self._pieces

    def start(self, id: str, strings: Sequence[str], prefix: Sequence[int]) -> None:
        """Watch a request that continues the generated tokens `prefix`."""
        if strings:
            self._watched[id] = _Watch(strings, self._pieces, prefix)

    def forget(self, ids: Iterable[str]) -> None:
        """Watch these requests no longer; unknown ids are ignored."""
        for id in ids:
            self._watched.pop(id, None)

    def cut(self, outputs: Sequence[StepOutput]) -> tuple[list[StepOutput], list[str]]:
        """Return the outputs up to the tokens that complete strings, and the ids of requests that the engine continues.

        The token that completes a string is the last one of its response.
        """
        if not self._watched:
            return list(outputs), []
        cut = [self._cut(output) for output in outputs]
        ended = [new.id for new, old in zip(cut, outputs, strict=True) if new.finish_reason and not old.finish_reason]
        self.forget(output.id for output in cut if output.finish_reason)
        return cut, ended

    def _cut(self, output: StepOutput) -> StepOutput:
        watch = self._watched.get(output.id)
        if watch is None:
            return output
        for count, token in enumerate(output.token_ids, 1):
            if watch.completed_by(token):
                tokens, logprobs = output.token_ids[:count], output.logprobs[:count]
                return replace(output, token_ids=tokens, logprobs=logprobs, finish_reason=FinishReason.STOP)
        return output
