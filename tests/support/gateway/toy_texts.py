"""Texts of the toys that call a tool: how the gateway writes and reads their conversations."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from rljob_api.spec.training import DataSpec
from rljob_runtime.data.chat_template import ChatTemplate
from rljob_runtime.gateway.text.suffix_text import SuffixText


def render_of(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return the rendering of conversations by the toy's template."""
    return ChatTemplate(tokenizer, DataSpec.model_validate({"prompts": {"file": {"path": "/unused"}}})).text


def text_of(tokenizer: PreTrainedTokenizerBase) -> SuffixText:
    """Return the gateway's text for the toy."""
    return SuffixText(tokenizer, render_of(tokenizer), [tokenizer.eos_token_id])


def result_message(result: str) -> dict[str, Any]:
    """Return a tool's result as a message."""
    return {"role": "tool", "content": result, "tool_call_id": "call00001"}
