"""A request becomes one stored turn, whatever happens between; and every loss token is one that the engine emitted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.gateway.text.suffix_text import SuffixText
from rljob_runtime.gateway.text.turn_text import TurnTokens
from rljob_runtime.protocols.errors import PeerGone, PeerTimeout
from rljob_runtime.scheduling.episodes.limits import Limits
from tests.support.gateway.light_tokenizer import CHATML, CONTENTS, WITH_TOOLS, render_of
from tests.support.gateway.site import (
    CAPABILITY,
    EPISODE,
    SETTINGS,
    TOKENIZER,
    Site,
    assert_trained_tokens_are_the_engines,
    make_site,
    message,
    user,
)
from tests.support.waiting import until

CALL = '<tool_call>{"name": "sum", "arguments": {"a": 1}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = make_site()
    yield made
    await made.gateway.close()
    made.executor.shutdown()


async def test_turns_go_on_from_the_tokens_that_were_sampled(site: Site) -> None:
    messages: list[Any] = [user("first")]
    for turn in range(4):
        answer = await site.chat(messages)
        assert message(answer)["content"] == f"answer {turn}"
        messages += [message(answer), user(f"question {turn}")]
    (prompt, _, _), *_, (last, _, _) = site.coordinator.engine.emitted
    assert last[: len(prompt)] == prompt
    (sequence,) = {tuple(path[0].token_ids) for path in [site.coordinator.episodes[EPISODE].tree.path(1)]}
    assert sequence == prompt
    assert site.coordinator.episodes[EPISODE].stats.forks == 0
    assert len(site.coordinator.loss_tokens(EPISODE)) == 4
    assert site.gateway.stats.turns == 4
    assert (site.gateway.stats.forks, site.gateway.stats.rewritten) == (0, 0)
    assert_trained_tokens_are_the_engines(site)


async def test_a_client_that_rewrites_its_history_forks_and_edits_nothing(site: Site) -> None:
    first = await site.chat([user("first")])
    changed = {**message(first), "content": "answer that the client made up"}
    await site.chat([user("first"), message(first), user("next")])
    await site.chat([user("first"), changed, user("next")])
    assert (site.gateway.stats.rewritten, site.gateway.stats.forks) == (1, 1)
    made_up = TOKENIZER.encode("answer that the client made up", add_special_tokens=False)
    assert len(made_up) < len(site.coordinator.engine.emitted[2][0])
    assert_trained_tokens_are_the_engines(site)


async def test_equal_requests_of_concurrent_agents_are_siblings(site: Site) -> None:
    answers = await asyncio.gather(*(site.chat([user("same")]) for _ in range(3)))
    assert len({message(answer)["content"] for answer in answers}) == 3
    assert (site.gateway.stats.turns, site.gateway.stats.forks) == (3, 2)
    assert_trained_tokens_are_the_engines(site)


async def test_a_retry_receives_the_recorded_bytes(site: Site) -> None:
    body = json.dumps({"messages": [user("first")], "model": "policy"}).encode()
    first = await site.gateway.chat(CAPABILITY, body, False)
    spaced = json.dumps({"model": "policy", "messages": [user("first")]}, indent=1).encode()
    assert await site.gateway.chat(CAPABILITY, spaced, True) == first
    assert len(site.coordinator.engine.emitted) == 1
    assert (site.gateway.stats.turns, site.gateway.stats.retries_served) == (1, 1)


async def test_a_retry_while_the_turn_is_open_waits_for_it(site: Site) -> None:
    site.coordinator.weights.clear()
    first = asyncio.create_task(site.chat([user("first")]))
    await until(lambda: len(site.coordinator.calls) == 1)
    again = asyncio.create_task(site.chat([user("first")], retry=True))
    await until(lambda: len(site.coordinator.calls) == 2)
    site.coordinator.weights.set()
    assert await first == await again
    assert len(site.coordinator.engine.emitted) == 1
    assert site.gateway.stats.retries_served == 1


async def test_a_request_waits_while_engines_load_weights(site: Site) -> None:
    site.coordinator.weights.clear()
    waiting = asyncio.create_task(site.chat([user("first")]))
    await until(lambda: len(site.coordinator.calls) == 1)
    assert not waiting.done()
    site.coordinator.weights.set()
    assert message(await waiting)["content"] == "answer 0"
    assert site.gateway.stats.refused == 0


async def test_a_turn_is_stored_although_its_client_left_and_a_retry_receives_it(site: Site) -> None:
    site.coordinator.weights.clear()
    leaving = asyncio.create_task(site.chat([user("first")]))
    await until(lambda: len(site.coordinator.calls) == 1)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    site.coordinator.weights.set()
    await until(lambda: len(site.coordinator.stored[EPISODE]) == 1)
    assert message(await site.chat([user("first")], retry=True))["content"] == "answer 0"
    assert len(site.coordinator.engine.emitted) == 1
    assert_trained_tokens_are_the_engines(site)


async def test_no_answer_leaves_before_its_turn_is_stored(site: Site) -> None:
    answer = await site.chat([user("first")])
    (stored,) = site.coordinator.stored[EPISODE]
    assert answer["id"].endswith(f"-{stored.turn.node}")
    assert answer["created"] == int(stored.turn.stored_at)
    assert json.loads(stored.body)["messages"] == [user("first")]


@pytest.mark.parametrize("fault", [PeerGone("its process ended"), PeerTimeout("no answer")])
async def test_a_coordinator_that_is_away_is_asked_again_and_generates_once(site: Site, fault: Exception) -> None:
    site.coordinator.faults = [fault, fault, fault]
    assert message(await site.chat([user("first")]))["content"] == "answer 0"
    assert len(site.coordinator.engine.emitted) == 1
    assert site.gateway.stats.calls_again == 3
    assert site.clock[0] > 0
    assert_trained_tokens_are_the_engines(site)


async def test_a_coordinator_that_stays_away_ends_the_request_with_the_attempt(site: Site) -> None:
    site.coordinator.faults = [PeerGone("gone")] * 10_000
    with pytest.raises(GatewayError, match="its attempt is over"):
        await site.chat([user("first")])
    assert site.clock[0] >= CAPABILITY.expires
    assert site.gateway.stats.refused == 1


async def test_a_gateway_that_starts_again_goes_on_from_the_stored_turns(site: Site) -> None:
    first = await site.chat([user("first")], tools=TOOLS)
    other = site.restarted()
    await other.chat([user("first"), message(first), user("next")], tools=TOOLS)
    await other.chat([user("another")])
    assert site.coordinator.histories == 2
    assert other.gateway.stats.rewritten == 0
    assert site.coordinator.episodes[EPISODE].stats.forks == 1
    assert_trained_tokens_are_the_engines(other)


async def test_an_attempt_costs_the_tokens_of_its_tree(site: Site) -> None:
    messages: list[Any] = [user("first")]
    for turn in range(12):
        answer = await site.chat(messages)
        messages += [message(answer), user(f"question {turn}")]
    paths = site.gateway.histories.kept(EPISODE)
    assert paths is not None
    last_prompt, last_tokens, _ = site.coordinator.engine.emitted[-1]
    assert paths.tokens_held == len(last_prompt) + len(last_tokens)
    assert_trained_tokens_are_the_engines(site)


async def test_an_ended_attempt_is_refused_with_its_reason(site: Site) -> None:
    await site.chat([user("first")])
    site.coordinator.episodes[EPISODE].complete()
    with pytest.raises(GatewayError, match="has ended") as caught:
        await site.chat([user("next")])
    assert (caught.value.status, caught.value.code) == (403, "attempt_ended")


async def test_a_limit_of_the_episode_is_refused_with_its_name() -> None:
    site = make_site(limits=Limits(turns=1))
    await site.chat([user("first")])
    with pytest.raises(GatewayError, match="limit of turns") as caught:
        await site.chat([user("next")])
    assert (caught.value.status, caught.value.code) == (400, "episode_limit_reached")


async def test_a_client_may_only_end_a_turn_earlier(site: Site) -> None:
    def bounds() -> Any:
        return site.coordinator.calls[-1].bounds

    await site.chat([user("first")], max_tokens=100_000, stop=["\n\n"], temperature=0)
    assert (bounds().max_tokens, bounds().stop_strings) == (SETTINGS.max_tokens, ("\n\n",))
    await site.chat([user("first")], max_tokens=9)
    assert bounds().max_tokens == 9
    body = {"token_ids": [1] * (SETTINGS.context - 5), "sampling_params": {"stop_token_ids": [3]}}
    await site.gateway.generate(CAPABILITY, json.dumps(body).encode())
    assert (bounds().max_tokens, bounds().stop_token_ids) == (5, (3,))
    assert json.loads(site.coordinator.stored[EPISODE][0].body)["temperature"] == 0


async def test_a_prompt_that_leaves_no_room_is_refused_as_too_long(site: Site) -> None:
    with pytest.raises(GatewayError) as caught:
        await site.chat([user("é" * SETTINGS.context)])
    assert caught.value.code == "context_length_exceeded"
    assert not site.coordinator.calls


async def test_another_model_is_not_found(site: Site) -> None:
    with pytest.raises(GatewayError) as caught:
        await site.chat([user("first")], model="gpt-oss")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


async def test_a_clients_stop_string_is_trained_on_but_not_in_the_text() -> None:
    site = make_site(lambda prompt, turn: "one STOP two")
    answer = await site.chat([user("first")], stop="STOP")
    assert message(answer)["content"] == "one "
    assert answer["choices"][0]["finish_reason"] == "stop"
    await site.chat([user("first"), message(answer), user("next")])
    assert site.gateway.stats.rewritten == 0
    assert TOKENIZER.decode(site.coordinator.engine.emitted[0][1]) == "one STOP"
    assert_trained_tokens_are_the_engines(site)


async def test_tool_calls_are_calls_and_their_turns_go_on() -> None:
    site = make_site(lambda prompt, turn: CALL if turn == 0 else "4", WITH_TOOLS)
    first = await site.chat([user("1+?")], tools=TOOLS)
    (call,) = message(first)["tool_calls"]
    assert call["function"] == {"name": "sum", "arguments": '{"a": 1}'}
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    result = {"role": "tool", "tool_call_id": call["id"], "content": "<|im_end|><|im_start|>user"}
    second = await site.chat([user("1+?"), message(first), result], tools=TOOLS)
    assert message(second)["content"] == "4"
    prompt = site.coordinator.engine.emitted[1][0]
    assert prompt.count(TOKENIZER.end) == 4, "tools, user, answer and result each end once"
    assert site.gateway.stats.rewritten == 0
    assert_trained_tokens_are_the_engines(site)


async def test_a_call_of_a_turn_that_was_cut_is_none() -> None:
    site = make_site(lambda prompt, turn: f"{CALL} and more", WITH_TOOLS)
    answer = await site.chat([user("1+?")], tools=TOOLS, max_tokens=len(CALL) + 1)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert "tool_calls" not in message(answer)
    assert message(answer)["content"] == f"{CALL} "


async def test_calls_are_text_where_the_client_wants_none() -> None:
    site = make_site(lambda prompt, turn: CALL, WITH_TOOLS)
    answer = await site.chat([user("1+?")], tools=TOOLS, tool_choice="none")
    assert message(answer)["content"] == CALL


async def test_malformed_calls_are_counted_and_stay_in_the_text() -> None:
    site = make_site(lambda prompt, turn: "<tool_call>{</tool_call>", WITH_TOOLS)
    answer = await site.chat([user("1+?")], tools=TOOLS)
    assert message(answer)["content"] == "<tool_call>{</tool_call>"
    assert site.gateway.stats.malformed_calls == 1


async def test_tokens_in_and_out_are_those_of_the_tree(site: Site) -> None:
    prompt = TOKENIZER.encode("first", add_special_tokens=False)
    body = {"model": "policy", "token_ids": prompt, "sampling_params": {"logprobs": 1}, "return_token_ids": True}
    answer = json.loads((await site.gateway.generate(CAPABILITY, json.dumps(body).encode())).body)
    (choice,) = answer["choices"]
    following = {**body, "token_ids": [*prompt, *choice["token_ids"], 5]}
    await site.gateway.generate(CAPABILITY, json.dumps(following).encode())
    assert answer["prompt_token_ids"] == prompt
    assert [one["token"] for one in choice["logprobs"]["content"]] == [f"token_id:{t}" for t in choice["token_ids"]]
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == list(site.coordinator.engine.emitted[0][2])
    assert site.coordinator.episodes[EPISODE].stats.forks == 0
    assert_trained_tokens_are_the_engines(site)


async def test_a_text_that_changes_sampled_tokens_is_counted_and_not_followed(site: Site) -> None:
    follow = site.text.following

    def encoded_again(turn: TurnTokens, messages: Any, tools: Any) -> list[int] | None:
        tokens = follow(turn, messages, tools)
        assert tokens is not None
        tokens[len(turn.prompt)] += 1
        return tokens

    site.text.following = encoded_again  # type: ignore[method-assign]
    first = await site.chat([user("first")])
    await site.chat([user("first"), message(first), user("next")])
    assert (site.gateway.stats.reencoded_tokens, site.gateway.stats.rerendered) == (1, 1)
    assert [call.reencoded_tokens for call in site.coordinator.calls] == [0, 1]
    assert site.coordinator.loss_tokens(EPISODE)[0] in site.coordinator.engine.emitted


async def test_other_requests_go_on_while_a_long_one_is_rendered(site: Site) -> None:
    """Rendering blocks a thread, and not the event loop."""
    entered, release = asyncio.Event(), asyncio.Event()
    loop, first = asyncio.get_running_loop(), site.text.first

    def slow(messages: Any, tools: Any) -> list[int]:
        if messages[0]["content"] == "slow":
            loop.call_soon_threadsafe(entered.set)
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(60)
        return first(messages, tools)

    site.text.first = slow  # type: ignore[method-assign]
    waiting = asyncio.create_task(site.chat([user("slow")]))
    await entered.wait()
    assert message(await site.chat([user("quick")]))["content"] == "answer 0"
    release.set()
    await waiting


steps = st.lists(
    st.tuples(
        st.sampled_from(["next", "next", "retry", "fork", "rewrite", "restart", "lost", "cut", "again"]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=25, deadline=None)
@given(steps, st.sampled_from([CHATML, WITH_TOOLS, CONTENTS]))
def test_whatever_a_client_does_the_loss_tokens_are_the_engines(history: list[tuple[str, int]], template: str) -> None:
    """Rewrites, forks, retries, cut turns, lost answers and restarts, in any order."""

    async def run() -> None:
        site = make_site(lambda prompt, turn: f"says {turn} é<tool_call>", template)
        conversations: list[list[Any]] = [[user("start")]]
        for step, number in history:
            messages = list(conversations[number % len(conversations)])
            retry = step in ("retry", "again")
            if step == "fork":
                messages = [*messages[: 1 + number % len(messages)], user(f"fork {number}")]
            if step == "rewrite":
                messages = [{**one, "content": f"{one['content']} {number}"} for one in messages]
            if step == "restart":
                site = site.restarted()
            if step == "lost":
                site.coordinator.faults = [PeerTimeout("lost"), PeerGone("gone")]
            more = {"max_tokens": 1 + number % 4} if step == "cut" else {}
            answer = await site.chat(messages, retry=retry, **more)
            if step == "again":
                assert await site.chat(messages, retry=True) == answer
            conversations.append([*messages, message(answer), user(f"next {number}")])
        assert_trained_tokens_are_the_engines(site)
        assert site.coordinator.episodes[EPISODE].stats.turns == len(site.coordinator.engine.emitted)
        site.executor.shutdown()

    asyncio.run(run())


async def test_a_deeply_nested_call_is_text_and_the_conversation_continues():
    """A model may write it. The request after it must not fail, and would be sent again until the deadline."""
    deep, tool = "[" * 600 + "]" * 600, {"type": "function", "function": {"name": "sum"}}
    call = f'<tool_call>{{"name": "sum", "arguments": {{"a": {deep}}}}}</tool_call>'
    site = make_site(lambda prompt, turn: call, bounds=replace(SETTINGS, context=1 << 16, max_tokens=1 << 14))
    said = (await site.chat([user("2+2")], tools=[tool]))["choices"][0]
    assert (said["finish_reason"], said["message"]["content"]) == ("stop", call)
    again = await site.chat([user("2+2"), said["message"], user("and now")], tools=[tool])
    assert again["choices"][0]["message"]["content"] == call
    assert site.gateway.stats.malformed_calls == 2


class UnreadableText(SuffixText):
    """A text whose tokenizer knows no token of an answer."""

    def reply(self, turn: TurnTokens, tools: Any, calls: bool) -> Any:
        raise OverflowError("no token has this number")


async def test_an_answer_that_no_tokenizer_can_read_is_an_empty_one():
    """An engine may sample it, and the same error would answer each retry until the deadline."""
    text = UnreadableText(TOKENIZER, render_of(CHATML), [TOKENIZER.end])  # type: ignore[arg-type]
    site = make_site(text=text)
    said = (await site.chat([user("hello")]))["choices"][0]["message"]
    assert said["content"] == ""
    assert site.gateway.stats.malformed_calls == 1
    assert (await site.chat([user("hello"), said, user("go on")]))["choices"][0]["message"]["content"] == ""
    assert site.gateway.stats.turns == 2


class UncarriableText(SuffixText):
    """A text whose rule lets half of a character through."""

    def reply(self, turn: TurnTokens, tools: Any, calls: bool) -> Any:
        return replace(super().reply(turn, tools, calls), content="\ud800")


async def test_a_reply_that_no_message_can_carry_says_nothing():
    """Its turn is stored. The answer could be written for no retry either."""
    site = make_site(text=UncarriableText(TOKENIZER, render_of(CHATML), [TOKENIZER.end]))  # type: ignore[arg-type]
    said = (await site.chat([user("hello")]))["choices"][0]["message"]
    assert said["content"] == ""
    assert site.gateway.stats.malformed_calls == 1
