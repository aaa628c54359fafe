"""The unmodified client of OpenAI works against the gateway: turns, tools, streams, retries, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import openai
import pytest

from rljob_runtime.gateway.capability import Capability, gateway_key, mint
from rljob_runtime.gateway.gateway import Gateway, GatewaySettings
from rljob_runtime.gateway.server import ServerSettings, serve
from rljob_runtime.gateway.text.suffix_text import SuffixText
from rljob_runtime.protocols.errors import PeerGone
from rljob_runtime.protocols.turns import EpisodeAttempt
from tests.support.gateway.light_tokenizer import WITH_TOOLS, light_tokenizer, render_of
from tests.support.gateway.stand_in_coordinator import RecordingEngine, StandInCoordinator, attempt_of

TOKENIZER = light_tokenizer()
KEY = gateway_key(b"secret")
MODEL = "policy"
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "sum", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
]
CALL = 'I add.<tool_call>{"name": "sum", "arguments": {"a": 1}}</tool_call>'


@dataclass
class Site:
    """A gateway that listens on loopback. `now`: its clock."""

    stack: AsyncExitStack
    coordinator: StandInCoordinator
    port: int = 0
    now: list[float] = field(default_factory=lambda: [0.0])
    gateway: Gateway = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def key(self, episode: EpisodeAttempt) -> str:
        if episode not in self.coordinator.episodes:
            self.coordinator.start(episode)
        return mint(KEY, Capability(episode, 1_000))

    def client(self, index: int = 0, path: str = "/v1", **settings: Any) -> openai.AsyncOpenAI:
        """Return a client for one episode."""
        made = openai.AsyncOpenAI(api_key=self.key(attempt_of(index)), base_url=self.url + path, **settings)
        self.stack.push_async_callback(made.close)
        return made

    def loss_tokens(self) -> list[Any]:
        return [one for episode in self.coordinator.episodes for one in self.coordinator.loss_tokens(episode)]


async def start(stack: AsyncExitStack, script: Callable[[str, int], str], bounds: ServerSettings) -> Site:
    coordinator = StandInCoordinator(RecordingEngine(TOKENIZER, script))
    site = Site(stack, coordinator)
    text = SuffixText(TOKENIZER, render_of(WITH_TOOLS), [TOKENIZER.end])  # type: ignore[arg-type]
    settings = GatewaySettings(MODEL, 8192, TOKENIZER.size, 1024)
    executor = stack.enter_context(ThreadPoolExecutor(2))

    def now() -> float:
        return site.now[0]

    site.gateway = Gateway(coordinator, text, settings, executor, now, sleep=lambda seconds: asyncio.sleep(0))
    site.port = await stack.enter_async_context(serve(site.gateway, KEY, now, "127.0.0.1", 0, bounds))
    return site


def script(prompt: str, turn: int) -> str:
    """Call the tool once for each question about it."""
    asked = prompt.rsplit("<|im_start|>user\n", 1)[-1]
    return CALL if asked.startswith("add") and "<|im_start|>tool" not in asked else f"answer {turn}"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield await start(stack, script, ServerSettings(most_bytes=100_000))


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def assert_trained_tokens_are_the_engines(site: Site) -> None:
    assert sorted(site.loss_tokens()) == sorted(site.coordinator.engine.emitted)
    assert site.gateway.stats.reencoded_tokens == 0
    assert site.gateway.stats.rewritten == 0


async def test_turns_with_a_tool_go_on_as_the_client_writes_them_back(site: Site) -> None:
    client = site.client()
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    for number in range(3):
        messages.append(user(f"add {number}"))
        first = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        (call,) = first.choices[0].message.tool_calls or ()
        assert first.choices[0].finish_reason == "tool_calls"
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"a": 1}
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "<|im_end|>2"}]
        second = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        assert second.choices[0].message.content == f"answer {2 * number + 1}"
        messages.append(second.choices[0].message.model_dump())
    assert site.gateway.stats.turns == 6
    assert site.gateway.stats.forks == 0
    (sequence,) = site.coordinator.episodes[attempt_of()].tree.leaves()
    assert len(site.coordinator.episodes[attempt_of()].tree.path(sequence.id)) == 12
    assert_trained_tokens_are_the_engines(site)


async def test_a_stream_has_the_same_answer(site: Site) -> None:
    client, text, calls, finish, usage = site.client(), "", [], None, None
    stream = await client.chat.completions.create(
        model=MODEL, messages=[user("add 1")], tools=TOOLS, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            calls += choice.delta.tool_calls or []
            finish = choice.finish_reason or finish
    assert (text, finish) == ("I add.", "tool_calls")
    assert calls[0].function.arguments == '{"a": 1}'
    ((prompt, tokens, _),) = site.coordinator.engine.emitted
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(tokens))
    async with client.chat.completions.stream(model=MODEL, messages=[user("hello")]) as events:
        final = await events.get_final_completion()
    assert final.choices[0].message.content == "answer 1"
    assert_trained_tokens_are_the_engines(site)


async def test_concurrent_episodes_and_agents_have_their_own_turns(site: Site) -> None:
    async def converse(index: int, name: str) -> None:
        client, messages = site.client(index), [user(f"{name} begins")]
        for _ in range(3):
            answer = await client.chat.completions.create(model=MODEL, messages=messages)
            messages += [answer.choices[0].message, user("next")]

    await asyncio.gather(*(converse(index, name) for index in range(4) for name in ("one", "other")))
    assert site.gateway.stats.turns == 24
    assert site.gateway.stats.forks == 4, "the second agent of an episode opens a branch"
    assert_trained_tokens_are_the_engines(site)


async def test_a_client_that_gives_up_and_sends_again_receives_the_recorded_turn(site: Site) -> None:
    client = site.client(timeout=1.0, max_retries=50)
    site.coordinator.weights.clear()
    waiting = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=[user("hello")]))
    async with asyncio.timeout(60):
        while len(site.coordinator.calls) < 2:  # noqa: ASYNC110, the coordinator's calls have no event
            await asyncio.sleep(0.01)
    site.coordinator.weights.set()
    assert (await waiting).choices[0].message.content == "answer 0"
    assert len(site.coordinator.engine.emitted) == 1
    assert site.gateway.stats.turns == 1
    assert site.gateway.stats.retries_served >= 1
    assert_trained_tokens_are_the_engines(site)


async def test_a_lost_coordinator_is_no_error_of_the_client(site: Site) -> None:
    site.coordinator.faults = [PeerGone("gone")] * 5
    answer = await site.client(max_retries=0).chat.completions.create(model=MODEL, messages=[user("hello")])
    assert answer.choices[0].message.content == "answer 0"
    assert site.gateway.stats.calls_again == 5


@pytest.mark.parametrize(
    ("given", "error", "param"),
    [
        ({"n": 2}, openai.BadRequestError, "n"),
        ({"extra_body": {"best_of": 2}}, openai.BadRequestError, "best_of"),
        ({"tool_choice": "required", "tools": TOOLS}, openai.BadRequestError, "tool_choice"),
        ({"model": "gpt-5"}, openai.NotFoundError, "model"),
        ({"messages": [user("é" * 9000)]}, openai.BadRequestError, "messages"),
    ],
)
async def test_what_cannot_be_served_is_an_error_of_the_client(
    site: Site, given: Any, error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as caught:
        await site.client().chat.completions.create(**{"model": MODEL, "messages": [user("hello")], **given})
    assert caught.value.param == param
    assert not site.coordinator.calls
    assert site.gateway.stats.refused == 1, "the client does not send it again"


async def test_sampling_parameters_are_recorded_and_ignored(site: Site) -> None:
    await site.client().chat.completions.create(model=MODEL, messages=[user("hello")], temperature=0, seed=1)
    (stored,) = site.coordinator.stored[attempt_of()]
    assert json.loads(stored.body)["temperature"] == 0
    assert site.coordinator.calls[0].bounds.max_tokens == 1024


async def test_the_model_has_its_context(site: Site) -> None:
    (model,) = (await site.client().models.list()).data
    assert (model.id, model.max_model_len) == (MODEL, 8192)  # type: ignore[attr-defined]


async def test_an_address_that_names_the_episode_takes_its_own_capability_only(site: Site) -> None:
    own, other = attempt_of(0).key, attempt_of(1).key
    answer = await site.client(0, f"/episodes/{own}/v1").chat.completions.create(model=MODEL, messages=[user("x")])
    assert answer.choices
    with pytest.raises(openai.PermissionDeniedError, match="another episode"):
        await site.client(0, f"/episodes/{other}/v1").models.list()


async def test_a_capability_ends_with_its_attempt_and_at_its_expiry(site: Site) -> None:
    client = site.client()
    site.coordinator.episodes[attempt_of()].complete()
    with pytest.raises(openai.PermissionDeniedError, match="has ended"):
        await client.chat.completions.create(model=MODEL, messages=[user("x")])
    site.now[0] = 1_000.0
    with pytest.raises(openai.AuthenticationError, match="expired"):
        await client.models.list()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/inference/v1/generate", "/v1/models"])
@pytest.mark.parametrize("header", [{}, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer sk-123"}])
async def test_no_route_of_the_model_opens_without_a_capability(site: Site, path: str, header: Any) -> None:
    async with aiohttp.ClientSession() as session:
        method = session.get if path.endswith("models") else session.post
        async with method(site.url + path, headers=header) as answer:
            assert answer.status == 401
            assert (await answer.json())["error"]["code"] == "invalid_api_key"


async def test_errors_of_the_protocol_have_the_same_form(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.key(attempt_of())}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for method, path, body, status, code in (
            ("GET", "/v1/nothing", None, 404, "unknown_route"),
            ("GET", "/v1/chat/completions", None, 405, "unknown_route"),
            ("POST", "/v1/chat/completions", b"x" * 100_001, 413, "request_too_large"),
            ("POST", "/v1/chat/completions", b"{", 400, "invalid_json"),
        ):
            async with session.request(method, site.url + path, data=body) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (status, code)
        async with session.get(f"{site.url}/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")


async def test_a_body_that_does_not_arrive_ends_its_request() -> None:
    async with AsyncExitStack() as stack:
        await _send_half_a_body(await start(stack, script, ServerSettings(read_seconds=0.05)))


async def _send_half_a_body(site: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    key = site.key(attempt_of())
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: 50\r\n\r\n{{"
    )
    writer.write(head.encode())
    assert (await reader.readline()).split()[1] == b"408"
    writer.close()


async def test_a_fault_of_the_gateway_names_nothing_of_it(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*given: Any) -> Any:
        raise KeyError("inner")

    site.coordinator.turn = broken  # type: ignore[method-assign]
    with pytest.raises(openai.InternalServerError) as caught:
        await site.client(max_retries=0).chat.completions.create(model=MODEL, messages=[user("x")])
    assert "inner" not in str(caught.value)
    assert "inner" in caplog.text


async def conversation(site: Site, index: int = 0) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {mint(KEY, Capability(attempt_of(index), 1_000))}"}
    async with aiohttp.ClientSession() as http, http.get(f"{site.url}/v1/conversation", headers=headers) as response:
        return response.status, await response.json()


async def test_a_conversation_is_what_the_client_sent_and_received(site: Site) -> None:
    client = site.client()
    assert await conversation(site) == (200, {"messages": None}), "no turn yet"
    sent: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "add 1"}]}]
    first = (await client.chat.completions.create(model=MODEL, messages=sent, tools=TOOLS)).choices[0].message
    sent.append(first.to_dict())
    sent.append({"role": "tool", "tool_call_id": sent[1]["tool_calls"][0]["id"], "content": "1"})
    second = (await client.chat.completions.create(model=MODEL, messages=sent, tools=TOOLS)).choices[0].message
    assert await conversation(site) == (200, {"messages": [*sent, second.to_dict()]})
    assert sent[1]["tool_calls"][0]["function"] == {"name": "sum", "arguments": '{"a": 1}'}
    await client.chat.completions.create(model=MODEL, messages=[user("x")])
    assert [one["content"] for one in (await conversation(site))[1]["messages"]] == ["x", "answer 2"], (
        "the newest turn's"
    )
    assert site.coordinator.histories == 4, "it is asked for, and not kept"


async def test_a_conversation_is_read_once_at_a_time(site: Site) -> None:
    site.client()
    read, history = asyncio.Event(), site.coordinator.history

    async def slow(*given: Any, **more: Any) -> Any:
        await read.wait()
        return await history(*given, **more)

    site.coordinator.history = slow  # type: ignore[method-assign]
    first, second = (asyncio.create_task(conversation(site)) for _ in range(2))
    done, _ = await asyncio.wait((first, second), timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert [one.result()[0] for one in done] == [429]
    read.set()
    assert sorted([(await first)[0], (await second)[0]]) == [200, 429]
    assert (await conversation(site))[0] == 200


async def test_a_conversation_can_be_read_while_its_attempt_is_scored(site: Site) -> None:
    await site.client().chat.completions.create(model=MODEL, messages=[user("2+3")])
    site.now[0] = 1_029.0
    assert (await conversation(site))[0] == 200, "its deadline is over, and its report is not there"
    site.now[0] = 1_030.0
    assert (await conversation(site))[0] == 401
    site.now[0] = 0.0
    site.coordinator.episodes[attempt_of()].complete()
    status, body = await conversation(site)
    assert (status, body["error"]["code"]) == (403, "attempt_ended")


async def test_a_turn_that_was_asked_for_by_tokens_has_no_conversation(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.key(attempt_of())}"}
    body = {"model": MODEL, "token_ids": [1, 2], "sampling_params": {}}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{site.url}/inference/v1/generate", json=body, headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
    assert await conversation(site) == (200, {"messages": None})
