"""Suffix text: turns of any model with a chat template, by the suffix rule.

The tokens of new messages are what a template writes after an answer: a short conversation with a marked answer is
rendered, and the text after the mark is encoded. It is appended to the tokens of the turn, which stay what the engine
sampled. The rule holds for templates that only append (`append_only`), so others are refused at the start.

Tools that a template does not write are described in the system message, and called as text (`tool_calls`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rljob_runtime.gateway.errors import bad
from rljob_runtime.gateway.text.append_only import QUESTION, Render, check_append_only
from rljob_runtime.gateway.text.plain_text import ANSWER, PlainText
from rljob_runtime.gateway.text.tool_calls import CLOSE, OPEN, parse_tool_calls, write_tool_call
from rljob_runtime.gateway.text.turn_text import ReplyText, TurnTokens
from rljob_runtime.gateway.wire.fields import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SuffixText:
    """The turns of one model. Raises `TemplateNotAppendOnly`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, render: Render, stop_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._render = render
        self._stops = frozenset(stop_token_ids)
        self._plain = PlainText(tokenizer)
        self._facts = check_append_only(render)

    def first(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[int]:
        """See `TurnText`."""
        return self._plain.encode(self._text((), self._described(messages, tools), tools))

    def following(self, turn: TurnTokens, messages: Sequence[Json], tools: Sequence[Json]) -> list[int] | None:
        """See `TurnText`. The template's end of a turn is not written twice: the engine may have sampled it."""
        answer: Json = {"role": "assistant", "content": ANSWER}
        text = self._text((QUESTION, answer), messages, tools)
        _, found, suffix = text.partition(ANSWER)
        if not found:
            return None
        tail = self._plain.encode(suffix)
        if turn.sampled and tail and turn.sampled[-1] == tail[0]:
            del tail[0]
        return [*turn.prompt, *turn.sampled, *tail]

    def reply(self, turn: TurnTokens, tools: Sequence[Json], calls: bool) -> ReplyText:
        """See `TurnText`."""
        tokens = list(turn.sampled)
        if tokens and tokens[-1] in self._stops:
            tokens.pop()
        decoded: Any = self._tokenizer.decode(tokens, skip_special_tokens=True)
        text = str(decoded)
        if not calls:
            return ReplyText(text)
        parsed = parse_tool_calls(text)
        return ReplyText(parsed.content, parsed.calls, malformed=parsed.malformed)

    def _text(self, before: Sequence[Json], messages: Sequence[Json], tools: Sequence[Json]) -> str:
        """Render messages whose words cannot become tokens of the template, after those `before`."""
        if (why := self._facts.no_tool_results) and any(one["role"] == "tool" for one in messages):
            raise bad(f"the model's chat template takes no tool results: {why}", "messages", "unsupported")
        given = tools if self._facts.writes_tools else ()
        shown = [*before, *(self._plain.guarded(self._shown(message)) for message in messages)]
        try:
            return self._render(shown, self._plain.guarded(list(given)))
        except Exception as error:  # a template may raise any error, and says with it what it does not take
            raise bad(f"the chat template refuses the messages: {str(error)[:300]}", "messages") from error

    def _shown(self, message: Json) -> Json:
        """Return a message with its calls as text, where the template writes none."""
        if not message.get("tool_calls") or self._facts.writes_calls:
            return message
        calls = (call["function"] for call in message["tool_calls"])
        written = [write_tool_call(call["name"], call["arguments"]) for call in calls]
        content = "\n".join(part for part in (message["content"], *written) if part)
        return {**{name: value for name, value in message.items() if name != "tool_calls"}, "content": content}

    def _described(self, messages: Sequence[Json], tools: Sequence[Json]) -> list[Json]:
        """Return messages whose first one describes the tools, where the template does not."""
        if not tools or self._facts.writes_tools:
            return list(messages)
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        text = (
            f"You may call these tools:\n{listed}\n"
            f'To call one, write {OPEN}{{"name": <name>, "arguments": <object>}}{CLOSE}.'
        )
        if messages[0]["role"] == "system":
            first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
            return [first, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]
