"""Open text: which rule turns the messages for a model into tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rljob_runtime.gateway.text.append_only import Render
from rljob_runtime.gateway.text.known_text import KnownText, known_renderer
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
) -> TurnText:
    """Return the text of a model.

    `model`: its name, if the job uses the model's own template; None for a template of the job. `arguments`: those of
    the template. A template that no renderer knows has to append: raises `TemplateNotAppendOnly`.
    """
    renderer = None if model is None else known_renderer(model)
    if renderer is None:
        return SuffixText(tokenizer, render, stop_token_ids)
    return KnownText(tokenizer, renderer, arguments)
