"""The unmodified client of the package `renderers`, with tokens of its own, works against the gateway."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from renderers import create_renderer
from renderers.client import OverlongPromptError, generate
from renderers.configs import Qwen3RendererConfig

from rljob_runtime.gateway.capability import gateway_key, mint
from rljob_runtime.gateway.server import serve
from tests.support.gateway.light_tokenizer import light_tokenizer
from tests.support.gateway.site import (
    CAPABILITY,
    EPISODE,
    SETTINGS,
    assert_trained_tokens_are_the_engines,
    make_site,
    user,
)

KEY = gateway_key(b"secret")


async def test_a_client_with_its_own_renderer_continues_from_received_tokens() -> None:
    site = make_site(lambda prompt, turn: f"answer {turn}")
    renderer = create_renderer(light_tokenizer(), Qwen3RendererConfig(thinking_retention="all"))
    key = mint(KEY, CAPABILITY)
    async with serve(site.gateway, KEY, lambda: 0.0, "127.0.0.1", 0) as port:
        url = f"http://127.0.0.1:{port}/episodes/{EPISODE.key}/v1"
        async with openai.AsyncOpenAI(api_key=key, base_url=url) as client:

            async def turn(messages: list[Any], prompt: list[int] | None = None) -> dict[str, Any]:
                return await generate(
                    client=client, renderer=renderer, messages=messages, model=SETTINGS.model, prompt_ids=prompt,
                    sampling_params={"temperature": 1.0, "max_tokens": 100}, cache_salt="salt", priority=1,
                )  # fmt: skip

            first = await turn([user("start")])
            bridge = renderer.bridge_to_next_turn(first["prompt_ids"], first["completion_ids"], [user("next")])
            second = await turn([], bridge.token_ids)
            with pytest.raises(OverlongPromptError):
                await turn([user("é" * SETTINGS.context)])
    assert [one["content"] for one in (first, second)] == ["answer 0", "answer 1"]
    assert [(one["completion_ids"], one["completion_logprobs"]) for one in (first, second)] == [
        (list(tokens), list(logprobs)) for _, tokens, logprobs in site.coordinator.engine.emitted
    ]
    assert site.coordinator.episodes[EPISODE].stats.forks == 0
    assert_trained_tokens_are_the_engines(site)
