"""Tool calls as text: `<tool_call>` with a JSON object in it, as Hermes and Qwen models write them.

A block is a call if it is closed, and holds an object with a name and arguments. Any other block stays in the text, so
that the agent sees what the model wrote. Text is read once, whatever the number of blocks that never end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rljob_runtime.gateway.wire.fields import parse_object

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool. `arguments` is the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedText:
    """The text of an answer without its calls, the calls in order, and the number of blocks that are none."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    malformed: int = 0


def parse_tool_calls(text: str) -> ParsedText:
    """Find the calls in an answer's text."""
    kept: list[str] = []
    calls: list[ToolCall] = []
    malformed = 0
    place = 0
    while (begin := text.find(OPEN, place)) >= 0:
        end = text.find(CLOSE, begin)
        if end < 0:
            malformed += 1
            break
        call = _call(text[begin + len(OPEN) : end])
        end += len(CLOSE)
        if call is None:
            malformed += 1
            kept.append(text[place:end])
        else:
            calls.append(call)
            kept.append(text[place:begin])
        place = end
    kept.append(text[place:])
    content = "".join(kept)
    return ParsedText(content.strip() if calls else content, tuple(calls), malformed)


def write_tool_call(name: str, arguments: Any) -> str:
    """Return a call as text, for a template that writes none."""
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"


def _call(block: str) -> ToolCall | None:
    """Return the call of a block's inside; None if it is none."""
    found = parse_object(block)
    if found is None or not isinstance(found.get("name"), str) or not found["name"]:
        return None
    arguments = found.get("arguments", {})
    if isinstance(arguments, str):  # some models write the object as a text
        arguments = parse_object(arguments)
    if not isinstance(arguments, dict):
        return None
    return ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False))
