"""A request's body is checked: what cannot be done is refused with the parameter's name, in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.gateway.wire.chat_request import IGNORED_SAMPLING, WITHOUT_EFFECT, parse_chat_request
from rljob_runtime.gateway.wire.fields import MOST_DEPTH, MOST_TEXTS, digest, parse_body, parse_object
from rljob_runtime.gateway.wire.generate_request import parse_generate_request
from rljob_runtime.gateway.wire.messages import assistant_message, chain

USER = {"role": "user", "content": "2+2"}
TOOL = {"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}
VOCABULARY = 50


def chat(**more: Any) -> Any:
    return parse_chat_request({"model": "m", "messages": [USER], **more})


def generate(parameters: Any = (), **more: Any) -> Any:
    return parse_generate_request(
        {"token_ids": [1, 2], "sampling_params": dict(parameters), **more}, VOCABULARY
    )  # fmt: skip


def refused(call: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        call()
    return caught.value


def nested(depth: int) -> str:
    return '{"a": ' * depth + "1" + "}" * depth


@pytest.mark.parametrize(("depth", "taken"), [(MOST_DEPTH, True), (MOST_DEPTH + 1, False), (900, False)])
def test_values_are_not_nested_deeper_than_templates_can_follow(depth, taken):
    assert (parse_object(nested(depth)) is not None) == taken
    if taken:
        assert parse_body(nested(depth).encode())
    else:
        assert refused(lambda: parse_body(nested(depth).encode())).code == "invalid_json"


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({"n": 2}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"best_of": 3}, "best_of", "unknown_parameter"),
        ({"functions": [{"name": "f"}]}, "functions", "unknown_parameter"),
        ({"tool_choice": "required", "tools": [TOOL]}, "tool_choice", "unsupported"),
        ({"tool_choice": {"type": "function", "function": {"name": "sum"}}}, "tool_choice", "unsupported"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "unsupported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported"),
        ({"top_logprobs": 5, "logprobs": True}, "top_logprobs", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens", "invalid_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": ["x"] * 17}, "stop", "invalid_value"),
        ({"stop": {"a": 1}}, "stop", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": ["user"], "content": ""}]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]", "unsupported"),
        ({"messages": [{"role": "user", "content": "", "weight": 1}]}, "messages[0].weight", "unknown_parameter"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]", "invalid_value"),
        ({"messages": [{"role": "assistant", "audio": {"id": "x"}}]}, "messages[0].audio", "unsupported"),
        ({"model": 3}, "model", "invalid_value"),
    ],
)  # fmt: skip
def test_a_chat_request_that_cannot_be_served_is_refused(given: dict[str, Any], param: str, code: str) -> None:
    error = refused(lambda: chat(**given))
    assert (error.status, error.param, error.code) == (400, param, code)
    assert json.loads(error.body())["error"]["param"] == param


@pytest.mark.parametrize(
    ("parameters", "more", "param"),
    [
        ({"n": 2}, {}, "sampling_params.n"),
        ({"logprobs": 5}, {}, "sampling_params.logprobs"),
        ({"prompt_logprobs": 0}, {}, "sampling_params.prompt_logprobs"),
        ({"beam_width": 4}, {}, "sampling_params.beam_width"),
        ({"truncate_prompt_tokens": 1}, {}, "sampling_params.truncate_prompt_tokens"),
        ({"stop_token_ids": [VOCABULARY]}, {}, "sampling_params.stop_token_ids"),
        ({}, {"token_ids": []}, "token_ids"),
        ({}, {"token_ids": [1, VOCABULARY]}, "token_ids"),
        ({}, {"token_ids": [-1]}, "token_ids"),
        ({}, {"token_ids": [True]}, "token_ids"),
        ({}, {"stream": True}, "stream"),
        ({}, {"features": {}}, "features"),
        ({}, {"output_mode": "text"}, "output_mode"),
        ({}, {"sampling_params": [1]}, "sampling_params"),
    ],
)  # fmt: skip
def test_a_request_for_tokens_that_cannot_be_served_is_refused(parameters: Any, more: Any, param: str) -> None:
    assert refused(lambda: generate(parameters, **more)).param == param


def test_sampling_parameters_of_a_client_change_nothing() -> None:
    ignored = dict.fromkeys([*IGNORED_SAMPLING, *WITHOUT_EFFECT], 0.3)
    assert chat(**ignored) == chat()
    assert generate({"temperature": 3, "min_tokens": 9, "ignore_eos": True}) == generate()


def test_fields_without_a_value_count_as_absent() -> None:
    assert chat(best_of=None, stop=None, tools=None, n=None, stream_options=None) == chat()


def test_what_ends_a_turn_earlier_is_taken() -> None:
    assert chat(max_tokens=7, max_completion_tokens=5, stop="x").max_tokens == 5
    assert chat(stop="x").stop == ("x",)
    found = generate({"max_tokens": 3, "stop": ["a", "b"], "stop_token_ids": [4], "logprobs": 0})
    assert (found.max_tokens, found.stop, found.stop_token_ids, found.logprobs) == (3, ("a", "b"), (4,), True)


def test_tools_without_choice_stay_in_the_prompt() -> None:
    request = chat(tools=[TOOL], tool_choice="none")
    assert request.tools
    assert not request.calls_allowed
    assert chat(tools=[TOOL]).calls_allowed


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"a": NaN}', b'{"a": 1e999}', b'"x"', b"\xff", b'{"a": "\\ud800"}', b"[" * 99999]
)
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    assert refused(lambda: parse_body(body)).code == "invalid_json"


def test_a_body_of_more_texts_than_any_conversation_has_is_refused_unread() -> None:
    """To read and to sort a million names holds all threads for seconds."""
    body = b'{"messages": [], "metadata": {' + b",".join(b'"%d": 1' % number for number in range(MOST_TEXTS)) + b"}}"
    assert "texts" in str(refused(lambda: parse_body(body)))
    inside = json.dumps({"content": json.dumps(["a"] * MOST_TEXTS)}).encode()
    assert len(parse_body(inside)["content"]) > MOST_TEXTS, "a tool's result may be JSON"


def test_the_order_and_the_spaces_of_a_body_do_not_matter_to_its_digest() -> None:
    one, other = parse_body(b'{"a": 1, "b": {"c": 2, "d": 3}}'), parse_body(b'{"b":{"d":3,"c":2},"a":1}')
    assert digest("/r", one) == digest("/r", other)
    assert digest("/r", one) != digest("/s", one)
    assert digest("/r", one) != digest("/r", {**one, "a": 2})


def said(*messages: Any) -> bytes:
    return chain((), chat(messages=list(messages)).messages)[-1]


CALLED = {"id": "c1", "type": "function", "function": {"name": "sum", "arguments": '{"a": 1, "b": 2}'}}


def test_forms_of_one_message_are_the_same() -> None:
    answer = {"role": "assistant", "content": "four"}
    assert said(USER, answer) == said(
        {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2"}]},
        {**answer, "refusal": None, "audio": None, "annotations": [], "tool_calls": None, "reasoning_content": "hm"},
    )
    spaced = {**CALLED, "id": "other", "function": {"name": "sum", "arguments": '{"b":2,  "a":1}'}}
    one = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
    assert said(USER, one) == said(USER, {"role": "assistant", "content": "", "tool_calls": [spaced]})
    written = assistant_message("", [{"id": "c1", "name": "sum", "arguments": '{"a": 1, "b": 2}'}])
    assert chain((), [*chat().messages, written])[-1] == said(USER, one)


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "four "},
        {"role": "user", "content": "four"},
        {"role": "assistant", "content": "four", "tool_calls": [CALLED]},
    ],
)
def test_another_message_is_another_conversation(other: Any) -> None:
    assert said(USER, {"role": "assistant", "content": "four"}) != said(USER, other)


@given(st.lists(st.sampled_from(["a", "b", "ab", ""]), min_size=1, max_size=4),
       st.lists(st.sampled_from(["a", "b", "ab", ""]), min_size=1, max_size=4))  # fmt: skip
def test_conversations_have_one_digest_only_if_they_are_equal(one: list[str], other: list[str]) -> None:
    digests = [said(*({"role": "user", "content": text} for text in texts)) for texts in (one, other)]
    assert (digests[0] == digests[1]) is (one == other)


def test_other_tools_are_another_conversation() -> None:
    messages = chat().messages
    assert chain((TOOL,), messages) != chain((), messages)
