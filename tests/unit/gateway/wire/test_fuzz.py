"""Whatever a client or a runner sends: its body is taken, or refused in OpenAI's form, and nothing else is raised."""

from __future__ import annotations

import json
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.gateway.wire import chat_request, generate_request
from rljob_runtime.gateway.wire.chat_request import parse_chat_request
from rljob_runtime.gateway.wire.fields import digest, parse_body
from rljob_runtime.gateway.wire.generate_request import parse_generate_request
from rljob_runtime.gateway.wire.messages import ASSISTANT, ROLES, chain
from rljob_runtime.gateway.wire.runner_requests import parse_called, parse_done, parse_heartbeat, parse_lease
from tests.support.examples import examples
from tests.support.gateway.site import EPISODE
from tests.support.json_values import objects, values, written

BUDGET = settings(max_examples=examples(300), deadline=None)
VOCABULARY = 50

calls = st.lists(
    objects(id=st.text(), type=st.just("function"), function=objects(name=st.text(), arguments=st.text())), max_size=3
)
messages = st.lists(
    objects(
        role=st.sampled_from(sorted(ROLES)),
        content=st.text() | st.lists(objects(type=st.just("text"), text=st.text()), max_size=2),
        tool_calls=calls,
        **dict.fromkeys(ASSISTANT - {"role", "content", "tool_calls"}, st.none()),
    ),
    max_size=4,
)
tools = st.lists(objects(type=st.just("function"), function=objects(name=st.text())), max_size=3)
chats = objects(
    **dict.fromkeys(chat_request.KNOWN - {"messages", "tools"}, st.none() | st.just(1) | st.booleans()),
    messages=messages,
    tools=tools,
)
parameters = objects(**dict.fromkeys(generate_request.PARAMETERS, st.none() | st.just(1)))
tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4)
generates = objects(
    **dict.fromkeys(generate_request.KNOWN - {"token_ids", "sampling_params"}, st.none()),
    token_ids=tokens,
    sampling_params=parameters,
)
episodes = {"episode": st.just(str(EPISODE.key)), "attempt": st.integers(1, 3), "resumption": st.integers(0, 1)}
runners = objects(
    runner=st.just("runner-1"),
    **episodes,
    environment=st.just("calc"),
    waitSeconds=st.floats(0, 60),
    most=st.integers(1, 99),
    journals=st.booleans(),
    episodes=st.lists(objects(**episodes), max_size=3),
    call=st.just("call_3_0"),
    name=st.text(),
    arguments=st.text(),
    observation=st.text(),
    reward=st.floats(0, 1),
    metrics=st.dictionaries(st.text(min_size=1), st.floats(0, 1), max_size=3),
    failed=st.sampled_from([None, "environment"]),
    detail=st.text(),
    limit=st.sampled_from([None, "turns"]),
)
RUNNERS: list[Callable[[bytes], object]] = [
    lambda body: parse_lease(body, "calc"),
    parse_heartbeat,
    parse_called,
    parse_done,
]


def judged(parse: Callable[[], object]) -> None:
    """Take a body, or refuse it in a form that can be sent."""
    refusal = None
    try:
        parse()
    except GatewayError as error:
        refusal = error
    if refusal is not None:
        assert 400 <= refusal.status < 500
        assert json.loads(refusal.body())["error"]["message"]


@BUDGET
@given(st.binary() | written(chats | values))
def test_a_chat_body_is_taken_or_refused(body: bytes) -> None:
    def parse() -> None:
        given = parse_body(body)
        request = parse_chat_request(given)
        assert len(chain(request.tools, request.messages)) == len(request.messages)
        assert digest("/chat", given)

    judged(parse)


@BUDGET
@given(st.binary() | written(generates | values))
def test_a_body_of_tokens_is_taken_or_refused(body: bytes) -> None:
    def parse() -> None:
        request = parse_generate_request(parse_body(body), VOCABULARY)
        assert all(0 <= token < VOCABULARY for token in (*request.token_ids, *request.stop_token_ids))

    judged(parse)


@BUDGET
@given(st.binary() | written(runners | values), st.sampled_from(RUNNERS))
def test_a_body_of_a_runner_is_taken_or_refused(body: bytes, parse: Callable[[bytes], object]) -> None:
    judged(lambda: parse(body))
