"""Renderer check: whether a renderer writes the text of the job's chat template.

A renderer is chosen by a name. The template beside the model may be another one: of a fine-tuned model, of another
revision, or with another default. The model would then be trained on text that it does not see at work. So a few
conversations are written by both at the start, and must agree.

Two differences are right. A template may write today's date, where a renderer writes a fixed one. And renderers repeat
the empty reasoning before earlier answers that templates drop, because the engine had it in its prompt.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rljob_api.spec.renderers import ChatTemplateRenderer
from rljob_runtime.gateway.errors import GatewayError, RendererNotUsable
from rljob_runtime.gateway.text.append_only import PROBE_CALL, PROBE_TOOL, QUESTION, RESULT, Render
from rljob_runtime.gateway.text.known_text import KnownText
from rljob_runtime.gateway.text.plain_text import PlainText
from rljob_runtime.gateway.wire.fields import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

SYSTEM: Json = {"role": "system", "content": "some rules"}
ANSWER: Json = {"role": "assistant", "content": "an answer"}
CALLED: Json = {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]}
PROMPTS: tuple[tuple[Json, ...], ...] = ((QUESTION,), (SYSTEM, QUESTION))
"""Conversations without an answer."""
HISTORIES: tuple[tuple[Json, ...], ...] = ((QUESTION, ANSWER, QUESTION), (QUESTION, CALLED, RESULT))
"""Conversations that go on."""
DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2} [A-Z][a-z]{2,8} \d{4}")
NO_REASONING = re.compile(r"<think>\s*</think>\s*|<\|channel>thought\s*<channel\|>")
DOWNLOADS = {ChatTemplateRenderer.GPT_OSS: "<|return|>"}
"""Renderers that load a vocabulary from the net, and a token without which none of it is needed."""
SHOWN = 60
"""Characters of a difference in a message."""


def check_renderer(text: KnownText, tokenizer: PreTrainedTokenizerBase, render: Render) -> None:
    """Compare what a renderer and a template write. Raises `RendererNotUsable` with the first difference.

    What the template does not take or does not write, as tools, is the renderer's alone. Renderers of `DOWNLOADS` write
    the format that the model was trained on. Its template is an approximation of that, so it is not compared.
    """
    if text.name in DOWNLOADS:
        return
    plain = PlainText(tokenizer)
    try:
        render([QUESTION])
    except Exception as error:  # a template may raise any error
        raise RendererNotUsable(f"the chat template renders no question: {str(error)[:300]}") from error
    for messages in (*PROMPTS, *HISTORIES):
        for tools in ((), (PROBE_TOOL,)):
            if (right := _written(render, messages, tools)) is None:
                continue
            own = _rendered(text, messages, tools)
            if own == plain.encode(right):
                continue
            written = str(tokenizer.decode(own))
            if _is_right(written, right, messages in HISTORIES):
                continue
            raise RendererNotUsable(_difference(text.name, written, right, bool(tools)))


def fitting_renderers(
    tokenizer: PreTrainedTokenizerBase, render: Render, arguments: Mapping[str, Any] | None
) -> list[str]:
    """Return the renderers that write a template's text."""
    found = []
    added = tokenizer.get_added_vocab()
    for renderer in ChatTemplateRenderer:
        if DOWNLOADS.get(renderer, "") not in {"", *added}:
            continue
        try:
            check_renderer(KnownText(tokenizer, renderer, arguments), tokenizer, render)
        except Exception:  # this is advice: an error of a renderer must not hide that of the template
            log.debug("the renderer %s is no cure", renderer, exc_info=True)
            continue
        found.append(str(renderer))
    return found


def _written(render: Render, messages: Sequence[Json], tools: Sequence[Json]) -> str | None:
    """Return what the template writes; None if it takes no such messages, or leaves tools or calls out."""
    try:
        text = render(messages, tools)
        without = render(messages) if tools else ""
    except Exception:  # any error of a template: it takes no such messages
        return None
    names = [RESULT["content"], PROBE_CALL["function"]["name"]] if CALLED in messages else []
    return text if text != without and all(name in text for name in names) else None


def _rendered(text: KnownText, messages: Sequence[Json], tools: Sequence[Json]) -> list[int]:
    try:
        return text.first(messages, tools)
    except GatewayError as error:
        raise RendererNotUsable(
            f"the renderer {text.name} takes no messages that the template takes: {error}"
        ) from error


def _is_right(own: str, right: str, is_history: bool) -> bool:
    """Return whether texts whose tokens differ do so in what may differ."""
    if own == right:
        return False
    forms = [DATE.sub("", one) for one in (own, right)]
    if is_history:
        forms = [NO_REASONING.sub("", one) for one in forms]
    return forms[0] == forms[1]


def _difference(renderer: str, own: str, right: str, tools: bool) -> str:
    place = next((i for i, (a, b) in enumerate(zip(own, right, strict=False)) if a != b), min(len(own), len(right)))
    begin = max(0, place - SHOWN // 3)
    shown = [repr(one[begin : begin + SHOWN]) for one in (own, right)]
    where = " when tools are given" if tools else ""
    if own == right:
        return f"the renderer {renderer} writes the text of the chat template in other tokens{where}"
    advice = "another renderer, spec.data.chatTemplateArguments with which both agree, or a spec.data.chatTemplateFile"
    return (
        f"the renderer {renderer} writes {shown[0]} where the chat template writes {shown[1]}{where}; {advice} "
        "would be right"
    )
