"""A chat template has the arguments and the file of the spec. One that does not fit them is refused at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from rljob_api.spec.training import DataSpec
from rljob_runtime.data import DataError, PromptSet
from rljob_runtime.data.chat_template import ChatTemplate
from rljob_runtime.data.prompts import PromptRules
from rljob_runtime.data.rows import Record
from rljob_runtime.models.toy import toy_tokenizer
from rljob_runtime.protocols.trajectory import PromptKey

THINKING = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
    "{% generation %}{{ suffix | default('') }}{% endgeneration %}{{ eos_token if false }}"
)
USER = {"role": "user", "content": "2+2"}


def with_template(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def data(**settings: Any) -> DataSpec:
    return DataSpec.model_validate({"prompts": {"file": {"path": "/unused"}}, **settings})


def rendered(template: str | None, **settings: Any) -> str:
    tokenizer = with_template(template)
    return str(tokenizer.decode(ChatTemplate(tokenizer, data(**settings)).tokens([USER])))


def refusal(template: str | None, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        ChatTemplate(with_template(template), data(**settings))
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (None, "[user]2+2<think>"),
        ({}, "[user]2+2<think>"),
        ({"enable_thinking": False}, "[user]2+2"),
        ({"enable_thinking": True, "suffix": "!"}, "[user]2+2<think>!"),
    ],
)
def test_arguments_reach_the_template(arguments: dict[str, Any] | None, text: str) -> None:
    assert rendered(THINKING, chat_template_arguments=arguments) == text


def test_an_unused_template_argument_is_refused_naming_the_used_ones() -> None:
    told = refusal(THINKING, chat_template_arguments={"enable_thinking": False, "enable_thinkin": False})
    assert told == (
        "spec.data.chatTemplateArguments.enable_thinkin: the model's chat template does not use it; "
        "it uses enable_thinking, suffix"
    )
    plain = "{% for m in messages %}{% set x = m.content %}{{ x }}{% endfor %}{{ bos_token }}"
    told = refusal(plain, chat_template_arguments={"x": 1})
    assert told == "spec.data.chatTemplateArguments.x: the model's chat template does not use it; it uses none"


def test_an_own_template_takes_the_place_of_the_models(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{% for m in messages %}<{{ m.content }}{{ mark }}>{% endfor %}")
    for models in (THINKING, None):
        text = rendered(models, chat_template_file=str(own), chat_template_arguments={"mark": "?"})
        assert text == "<2+2?>"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{% for m in messages %}\n{{ m.content }}\n{% endif %}", "line 3: Encountered unknown tag 'endif'"),
        (b"a\n{{ messages", "line 2: unexpected end of template"),
        (b" \n", "is empty"),
        (b"\xff", "cannot be read: 'utf-8' codec can't decode byte 0xff"),
        (None, "does not exist"),
    ],
)
def test_a_template_file_that_cannot_be_used_is_named_with_its_place(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    own = tmp_path / "own.jinja"
    if content is not None:
        own.write_bytes(content)
    message = refusal(THINKING, chat_template_file=str(own))
    assert str(own) in message
    assert told in message


def test_a_template_of_the_model_with_a_mistake_is_named_too() -> None:
    assert refusal("{{ messages }").startswith("the model's chat template, line 1: ")
    assert refusal(None) == (
        "the model's tokenizer has no chat template; set spec.data.chatTemplate: false, or give one in "
        "spec.data.chatTemplateFile"
    )


def test_several_templates_without_a_default_are_refused_with_their_names() -> None:
    several: Any = {"tool_use": THINKING, "rag": "{{ messages }}"}
    assert refusal(several) == (
        "the model's tokenizer has several chat templates (rag, tool_use), and none named default; "
        "give the right one in spec.data.chatTemplateFile"
    )
    assert rendered({**several, "default": THINKING}) == "[user]2+2<think>"  # type: ignore[arg-type]


NO_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
DROPS = {
    "skips the role": NO_SYSTEM,
    "the last message only": "{{ messages[-1].content }}",
    "the role, not the text": "{% for m in messages %}<{{ m.role }}>{{ m.content if m.role == 'user' }}{% endfor %}",
}


@pytest.mark.parametrize("template", DROPS.values(), ids=DROPS)
def test_a_template_that_drops_the_system_prompt_is_refused(template: str) -> None:
    assert refusal(template, system_prompt="Be brief.") == (
        "spec.data.systemPrompt: the model's chat template drops it; leave it out, and put its text into the prompts, "
        "or give a template in spec.data.chatTemplateFile"
    )


@pytest.mark.parametrize(
    ("template", "system_prompt"),
    [
        (THINKING, " Be brief.\n"),
        ("{% for m in messages %}{{ m.content | trim }}{% endfor %}", " Be brief.\n"),
        ("{{ messages[0].content + '|' + messages[-1].content if messages | length > 1 }}", "Be brief."),
        ("{{ raise_exception('no user alone') if messages | length == 1 }}{{ messages[0].content }}", "Be brief."),
    ],
)
def test_a_template_that_shows_the_system_prompt_passes(template: str, system_prompt: str) -> None:
    ChatTemplate(with_template(template), data(system_prompt=system_prompt))


def test_prompts_are_tokenised_with_them_and_refusals_name_the_file(tmp_path: Path) -> None:
    class One:
        name, checked_ahead = "one", False

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Record:
            return Record(index, "record 0", "2+2", "4")

    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[0].content }}{{ tail }}")
    settings = {"chat_template_file": str(own), "chat_template_arguments": {"tail": "!"}}
    tokenizer = toy_tokenizer()
    prompts = PromptSet(One(), PromptRules(data(**settings), tokenizer))
    assert tokenizer.decode(prompts.prompt(PromptKey(0, 0)).token_ids) == "2+2!"
    own.write_text("{{ raise_exception('never') }}{{ tail }}")
    refusing = PromptSet(One(), PromptRules(data(**settings), tokenizer))
    with pytest.raises(DataError, match=f"the chat template {own} refuses it: never"):
        refusing.prompt(PromptKey(0, 0))
