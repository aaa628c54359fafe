"""A renderer is chosen by the job or by the model's name, opens, and must write the text of the chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from renderers.base import MODEL_RENDERER_MAP, RENDERER_REGISTRY, _populate_registry

from rljob_api import load
from rljob_api.spec.renderers import ChatTemplateRenderer
from rljob_runtime.gateway.config import GatewayConfig
from rljob_runtime.gateway.errors import RendererNotUsable, TemplateNotAppendOnly
from rljob_runtime.gateway.text.known_text import KnownText, renderer_of
from rljob_runtime.gateway.text.open_text import open_text
from rljob_runtime.gateway.text.renderer_check import check_renderer, fitting_renderers
from rljob_runtime.gateway.text.suffix_text import SuffixText
from rljob_runtime.gateway.text.turn_text import TurnText, TurnTokens
from tests.support.api.invalid_specs import CALC
from tests.support.api.jobs import job
from tests.support.gateway.light_tokenizer import (
    CHATML,
    STRIPS_THINKING,
    WITH_TOOLS,
    any_name_tokenizer,
    light_tokenizer,
    render_of,
)
from tests.support.gateway.site import user

TOKENIZER: Any = light_tokenizer()
QUIET = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n\n</think>\n\n{% endif")
"""A template without reasoning: the prompt has an empty one, and earlier answers have none."""
LLAMA = (
    "<|begin_of_text|>{% set said = messages[0].content if messages[0].role == 'system' else '' %}"
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: DATE\n\n{{ said }}<|eot_id|>{% for message in messages if message.role != 'system' %}"
    "<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
DOWNLOADED = {"gpt-oss"}
"""Renderers whose vocabulary comes from the net."""


def text_of(source: str, template: str, renderer: str | None = None) -> TurnText:
    """Return the text of a job's gateway with a model that has such a template."""
    data = {"spec.data.chatTemplateRenderer": renderer} if renderer else {}
    given = {"spec.model.source": source, "spec.environments": [CALC], "spec.data.chatTemplate": True, **data}
    config = GatewayConfig.of(load(job(given)), *(Path("unused"),) * 4)
    render, stops = render_of(template), [TOKENIZER.end]
    chosen = renderer_of(config.data.chat_template_renderer, config.known_model, True)
    return open_text(TOKENIZER, render, stops, config.known_model, None, chosen)


def test_the_spec_names_every_renderer_that_can_go_on_with_turns() -> None:
    _populate_registry()
    assert {str(one) for one in ChatTemplateRenderer} == RENDERER_REGISTRY.keys() - {"default"}


@pytest.mark.parametrize(
    "source",
    ["hf://Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B@main", "hf://Qwen/Qwen3-8B@b968826d9c46dd6066d109eabc6255188de91218"],
)
def test_a_model_of_the_hub_is_known_at_any_revision(source: str) -> None:
    assert isinstance(text_of(source, STRIPS_THINKING), KnownText)


@pytest.mark.parametrize("source", ["hf://me/qwen3-sft", "pvc://models/qwen3", "/models/Qwen/Qwen3-8B"])
def test_the_job_names_the_renderer_of_a_model_that_is_not_known(source: str) -> None:
    assert isinstance(text_of(source, CHATML), SuffixText)
    assert isinstance(text_of(source, STRIPS_THINKING, "qwen3"), KnownText)
    with pytest.raises(TemplateNotAppendOnly, match=r"or spec.data.chatTemplateRenderer: .*\bqwen3\b.*, which writes"):
        text_of(source, STRIPS_THINKING)


def test_a_renderer_that_does_not_fit_opens_no_text() -> None:
    with pytest.raises(RendererNotUsable, match="the renderer qwen3 writes"):
        text_of("hf://Qwen/Qwen3-8B", QUIET)
    with pytest.raises(RendererNotUsable, match="the renderer qwen3 writes"):
        text_of("/models/mine", QUIET, "qwen3")


def test_the_jobs_renderer_counts_before_the_models_name() -> None:
    with pytest.raises(RendererNotUsable, match="the renderer llama-3 does not open with the model's tokenizer"):
        text_of("hf://Qwen/Qwen3-8B", CHATML, "llama-3")


@pytest.mark.parametrize("renderer", sorted({*MODEL_RENDERER_MAP.values()} - DOWNLOADED))
def test_every_renderer_opens_and_keeps_the_tokens_of_a_turn(renderer: str) -> None:
    tokenizer: Any = any_name_tokenizer()
    KnownText(tokenizer, renderer)  # the first one asks for the tokens
    text = KnownText(tokenizer, renderer)
    prompt = text.first([user("a question")], ())
    assert "a question" in tokenizer.decode(prompt)
    stop = text._renderer.get_stop_token_ids()[0]
    turn = TurnTokens(prompt, [*tokenizer.encode("reasoning</think>\n\nan answer", add_special_tokens=False), stop])
    tokens = text.following(turn, [user("another one")], ())
    assert tokens is not None
    own = [*turn.prompt, *turn.sampled]
    assert tokens[: len(own)] == own
    assert "another one" in tokenizer.decode(tokens[len(own) :])


def test_sizes_of_a_family_are_told_apart_by_the_models_name() -> None:
    tokenizer: Any = any_name_tokenizer()
    large, small = (
        tokenizer.decode(KnownText(tokenizer, "qwen3.5", None, model).first([user("x")], ()))
        for model in ("Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-0.8B")
    )
    assert large.endswith("<think>\n")
    assert small.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("template", "difference"),
    [
        (
            "<|im_start|>system\nBe good.<|im_end|>\n" + CHATML,
            r"writes '<\|im_start\|>user.* writes '<\|im_start\|>system",
        ),
        (QUIET, r"where the chat template writes .*<think>"),
        (CHATML.replace("message.content }}", "message.content | upper }}"), "writes '.*first q.* writes '.*FIRST Q"),
        (WITH_TOOLS, "when tools are given; another renderer"),
        ("{{ nothing.at_all }}", "the chat template renders no question: 'nothing' is undefined"),
    ],
)
def test_a_renderer_that_writes_another_text_is_refused(template: str, difference: str) -> None:
    with pytest.raises(RendererNotUsable, match=f"(?s){difference}"):
        check_renderer(KnownText(TOKENIZER, "qwen3"), TOKENIZER, render_of(template))


def test_a_text_in_other_tokens_is_refused() -> None:
    class Spelling(KnownText):
        def first(self, messages: Any, tools: Any) -> list[int]:
            return TOKENIZER.spelled(TOKENIZER.decode(super().first(messages, tools)))

    with pytest.raises(RendererNotUsable, match="writes the text of the chat template in other tokens"):
        check_renderer(Spelling(TOKENIZER, "qwen3"), TOKENIZER, render_of(CHATML))


def test_a_fixed_date_may_stand_for_today() -> None:
    tokenizer: Any = any_name_tokenizer()
    KnownText(tokenizer, "llama-3")
    check_renderer(KnownText(tokenizer, "llama-3"), tokenizer, render_of(LLAMA.replace("DATE", "30 Nov 2026")))
    with pytest.raises(RendererNotUsable, match="Today Date"):
        check_renderer(KnownText(tokenizer, "llama-3"), tokenizer, render_of(LLAMA.replace("DATE", "unknown")))


def test_empty_reasoning_may_stand_before_earlier_answers() -> None:
    check_renderer(KnownText(TOKENIZER, "qwen3", {"enable_thinking": False}), TOKENIZER, render_of(QUIET))


def test_renderers_that_fit_are_found_without_the_net() -> None:
    assert "qwen3" in fitting_renderers(TOKENIZER, render_of(STRIPS_THINKING), None)
    assert fitting_renderers(TOKENIZER, render_of(QUIET), {"enable_thinking": False}) == ["qwen3"]
    assert fitting_renderers(TOKENIZER, render_of("{{ messages }}"), None) == []


def test_a_download_that_fails_says_nothing_of_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another start may succeed, so it is no `RendererNotUsable`."""

    def fails(*_: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("renderers.create_renderer", fails)
    with pytest.raises(ConnectionError):
        KnownText(TOKENIZER, "gpt-oss")


def test_a_renderer_of_a_trained_format_is_not_compared_with_a_template() -> None:
    text = KnownText(TOKENIZER, "qwen3")
    with pytest.raises(RendererNotUsable):
        check_renderer(text, TOKENIZER, render_of(LLAMA))
    text.name = "gpt-oss"
    check_renderer(text, TOKENIZER, render_of(LLAMA))
