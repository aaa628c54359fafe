"""Open text: which rule turns the messages for a model into tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rljob_runtime.gateway.errors import TemplateNotAppendOnly
from rljob_runtime.gateway.text.append_only import Render
from rljob_runtime.gateway.text.known_text import KnownText
from rljob_runtime.gateway.text.renderer_check import check_renderer, fitting_renderers
from rljob_runtime.gateway.text.suffix_text import SuffixText
from rljob_runtime.gateway.text.turn_text import TurnText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def open_text(
    tokenizer: PreTrainedTokenizerBase,
    render: Render,
    stop_token_ids: Sequence[int],
    model: str | None,
    arguments: Mapping[str, Any] | None = None,
    renderer: str | None = None,
) -> TurnText:
    """Return the text of a model.

    `model`: its name on the hub, by which renderers tell sizes apart; None if it has none. `arguments`: those of the
    template. `renderer`: the one that writes it; None if the template has to append only.

    Raises `RendererNotUsable` for a renderer that writes another text than the template, and `TemplateNotAppendOnly`
    for a template without a renderer that changes earlier turns.
    """
    if renderer is not None:
        text = KnownText(tokenizer, renderer, arguments, model)
        check_renderer(text, tokenizer, render)
        return text
    try:
        return SuffixText(tokenizer, render, stop_token_ids)
    except TemplateNotAppendOnly as error:
        if not (fitting := fitting_renderers(tokenizer, render, arguments)):
            raise
        advice = f"or spec.data.chatTemplateRenderer: {' or '.join(fitting)}, which writes this text"
        raise TemplateNotAppendOnly(f"{error}, {advice}") from error
