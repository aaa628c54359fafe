"""Append-only check: whether a chat template ever changes what it wrote for earlier messages.

The tokens of a turn stay as they are, and later messages are appended to them. That is the template's own text only if
the template appends as well. Many templates do not: they drop the reasoning of earlier turns, or move the tools to the
last question. A model would then be trained on text that it never sees at work. So a few conversations are rendered at
the start, and every longer one must begin with every shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from rljob_runtime.gateway.errors import TemplateNotAppendOnly
from rljob_runtime.gateway.wire.fields import Json


class Render(Protocol):
    """A chat template: messages and tools as text. Raises whatever the template raises."""

    def __call__(self, messages: Sequence[Json], tools: Sequence[Json] = (), generation_prompt: bool = True) -> str:
        """Return the text."""
        ...


@dataclass(frozen=True)
class TemplateFacts:
    """What a template does with tools. What it does not, is written as text.

    `no_tool_results`: why it takes no tool results; empty if it does.
    """

    writes_tools: bool
    writes_calls: bool
    no_tool_results: str = ""


PROBE_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "rljob_probe",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]},
    },
}
PROBE_CALL: Json = {
    "id": "call0prob",
    "type": "function",
    "function": {"name": "rljob_probe", "arguments": {"value": "1"}},
}
QUESTION: Json = {"role": "user", "content": "first question"}
RESULT: Json = {"role": "tool", "content": "tool result", "tool_call_id": "call0prob", "name": "rljob_probe"}
ANSWERS = ("an answer", "<think>\nsome reasoning\n</think>\n\nan answer")
"""Answers of a model. Templates treat reasoning in another way."""


def check_append_only(render: Render) -> TemplateFacts:
    """Return what the template does with tools.

    Raises `TemplateNotAppendOnly` with the first difference, or with the error that the template raises.
    """
    try:
        facts = _facts(render)
        for tools in ((), (PROBE_TOOL,)) if facts.writes_tools else ((),):
            for answer in ANSWERS:
                _check(render, tools, answer, results=not facts.no_tool_results)
    except TemplateNotAppendOnly:
        raise
    except Exception as error:  # a template may raise any error
        raise TemplateNotAppendOnly(f"the chat template renders no conversation of two turns: {error}") from error
    return facts


def _facts(render: Render) -> TemplateFacts:
    name = PROBE_TOOL["function"]["name"]
    called: Json = {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]}
    return TemplateFacts(
        writes_tools=name in render([QUESTION], [PROBE_TOOL]),
        writes_calls=name in _tried(lambda: render([QUESTION, called], (), False)),
        no_tool_results=_no_tool_results(render),
    )


def _no_tool_results(render: Render) -> str:
    try:
        text = render([QUESTION, {"role": "assistant", "content": "an answer"}, RESULT])
    except Exception as error:  # a template may raise any error
        return str(error) or type(error).__name__
    return "" if RESULT["content"] in text else "it drops them"


def _tried(render: Callable[[], str]) -> str:
    try:
        return render()
    except Exception:  # any error of a template: it writes nothing then
        return ""


def _check(render: Render, tools: Sequence[Json], answer: str, results: bool) -> None:
    """Render a conversation up to each of its questions; check that each text begins with the one before."""
    said: Json = {"role": "assistant", "content": answer}
    second: Json = {"role": "user", "content": "second question"}
    conversation = [QUESTION, said, *([RESULT, said, RESULT, RESULT, said] if results else []), second, said, second]
    ends = [index + 1 for index, message in enumerate(conversation) if message is said]
    texts = [render(conversation[: end - 1], tools) for end in ends] + [render(conversation, tools)]
    for before, after in pairwise(texts):
        written = before + answer
        if not after.startswith(written):
            place = next((i for i, (a, b) in enumerate(zip(written, after, strict=False)) if a != b), len(after))
            raise TemplateNotAppendOnly(
                f"the chat template changes earlier turns: {written[place : place + 40]!r} becomes"
                f" {after[place : place + 40]!r}{' when tools are given' if tools else ''}; "
                "a template that only appends would be right"
            )
