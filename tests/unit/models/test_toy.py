"""The toy model's own tokenizer and the job's chat template make the gateway's text."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from rljob_api.spec.training import DataSpec
from rljob_runtime.data.chat_template import ChatTemplate
from rljob_runtime.gateway.errors import TemplateNotAppendOnly
from rljob_runtime.gateway.text.suffix_text import SuffixText
from rljob_runtime.gateway.text.turn_text import TurnTokens
from rljob_runtime.models.toy import EOS, toy_tokenizer
from tests.support.gateway.light_tokenizer import CHATML, STRIPS_THINKING
from tests.support.gateway.site import user


def template_of(tokenizer: PreTrainedTokenizerFast, **settings: Any) -> ChatTemplate:
    return ChatTemplate(tokenizer, DataSpec.model_validate({"prompts": {"file": {"path": "/unused"}}, **settings}))


def text_of(tokenizer: PreTrainedTokenizerFast) -> SuffixText:
    return SuffixText(tokenizer, template_of(tokenizer).text, [tokenizer.eos_token_id])


def test_the_first_prompt_has_the_tokens_of_the_jobs_prompts() -> None:
    tokenizer = toy_tokenizer()
    messages = [user("3 + 4 =")]
    assert text_of(tokenizer).first(messages, ()) == list(template_of(tokenizer).tokens(messages))


def test_a_turn_goes_on_after_the_token_that_ended_it() -> None:
    tokenizer = toy_tokenizer()
    text = text_of(tokenizer)
    turn = TurnTokens(text.first([user("3 + 4 =")], ()), tokenizer.encode(f"7{EOS}"))
    tokens = text.following(turn, [user(f"{EOS}5 + 1 =")], ())
    assert tokens is not None
    own = [*turn.prompt, *turn.sampled]
    assert tokens[: len(own)] == own
    tail = tokens[len(own) :]
    assert tokenizer.eos_token_id not in tail, "a message cannot end a turn"
    assert tokenizer.decode(tail) == f"{EOS}5 + 1 ="
    assert text.reply(turn, (), calls=True).content == "7"


@pytest.mark.parametrize(("template", "appends"), [(CHATML, True), (STRIPS_THINKING, False)])
def test_the_jobs_template_is_checked(template: str, appends: bool) -> None:
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = template
    if appends:
        assert tokenizer.decode(text_of(tokenizer).first([user("1")], ())).endswith("assistant\n")
    else:
        with pytest.raises(TemplateNotAppendOnly):
            text_of(tokenizer)


def test_tools_and_arguments_reach_the_template() -> None:
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = "{{ (tools or []) | length }}{{ style }}{{ add_generation_prompt }}"
    template = template_of(tokenizer, chat_template_arguments={"style": "!"})
    assert template.text([user("1")], [{"type": "function"}]) == "1!True"
    assert template.text([user("1")], generation_prompt=False) == "0!False"
