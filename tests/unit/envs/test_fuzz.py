"""Whatever a server answers or a program writes: it is a result or a failure of ours, and nothing else is raised."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljob_env.agents.harness import _result_of
from rljob_env.failures import Failed
from rljob_env.openenv.actions import ActionRefused, observation_text, result_text, tool_of
from rljob_env.openenv.session import ServerFull, Session
from rljob_env.tools.mcp_client import McpClient
from rljob_env.tools.toolbox import ToolError
from tests.support.examples import examples
from tests.support.json_values import NESTED, objects, values, written

BUDGET = settings(max_examples=examples(300), deadline=None)
SECONDS = 20.0

content = st.lists(objects(type=st.just("text"), text=st.text()), max_size=2)
listed = st.lists(objects(name=st.text(), description=st.text(), inputSchema=st.just({})), max_size=2)
results = objects(
    protocolVersion=st.sampled_from(["2025-06-18", "\u00e9", "a\nb"]),
    capabilities=objects(tools=st.just({})),
    tools=listed,
    nextCursor=st.none() | st.just("more") | st.just(math.nan),
    content=content,
    structuredContent=values,
    isError=st.booleans(),
)
errors = objects(code=st.sampled_from([-32602, -32000]), message=st.text())
asked = objects(method=st.sampled_from(["ping", "sampling/createMessage"]), id=st.integers() | st.just(math.nan))
messages = st.one_of(
    results.map(lambda result: {"id": "ID", "result": result}),
    results.map(lambda result: {"id": "ID", "result": result}),
    errors.map(lambda error: {"id": "ID", "error": error}),
    asked,
    values,
)
STATUSES = st.sampled_from([200, 200, 200, 200, 202, 302, 404, 500])
HEADERS = st.fixed_dictionaries(
    {"Content-Type": st.sampled_from(["application/json", "text/event-stream", "text/html"])},
    optional={
        "Mcp-Session-Id": st.sampled_from([b"s1", b"\xff", b""]),
        "Content-Encoding": st.sampled_from(["gzip", "identity"]),
    },
)
answers = st.tuples(STATUSES, HEADERS, written(messages) | st.binary(), st.booleans())


def transport(given: list[Any]) -> httpx.MockTransport:
    """Return a server that answers each request with the next of these."""
    left = iter(given)

    def answer(request: httpx.Request) -> httpx.Response:
        status, headers, body, is_event = next(left, (200, {"Content-Type": "application/json"}, b"{}", False))
        body = body.replace(b'"ID"', str(json.loads(request.content or b"{}").get("id", 0)).encode())
        text = b"data: " + body.replace(b"\n", b"\ndata: ") + b"\n\n" if is_event else body
        # A stream, so that the client decodes it.
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(text))

    return httpx.MockTransport(answer)


def began(result: Any, **headers: Any) -> list[Any]:
    """Return a server's answer to the begin of a session, and one in which it asks something."""
    both = [{"id": "ID", "result": result}, {"id": math.nan, "method": "ping"}]
    return [(200, {"Content-Type": "application/json", **headers}, json.dumps(one).encode(), False) for one in both]


BEGIN = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}


@BUDGET
@given(st.lists(answers, max_size=6))
@example(began({**BEGIN, "protocolVersion": "\u00e9"}))
@example(began({**BEGIN, "capabilities": 1}))
@example(began(BEGIN, **{"Mcp-Session-Id": b"\xff"}))
@example(began(BEGIN, **{"Content-Encoding": "gzip"}))
@example(began(BEGIN)[:1] * 2 + began(BEGIN)[1:])
def test_an_answer_of_an_mcp_server_is_a_text_or_a_failure(given: list[Any]) -> None:
    async def converse() -> None:
        async with httpx.AsyncClient(transport=transport(given)) as http:
            client = McpClient(http, "http://tools/mcp", SECONDS)
            with contextlib.suppress(Failed):
                for tool in await client.tools():
                    assert json.dumps(tool)
            with contextlib.suppress(Failed, ToolError):
                assert isinstance(await client.call("add", {"a": 1}), str)
            await client.close()

    asyncio.run(converse())


class Frames:
    """The connection of a server that sends these frames."""

    def __init__(self, frames: list[Any]) -> None:
        self._frames = iter(frames)

    async def send(self, text: str) -> None:
        json.loads(text)

    async def recv(self) -> Any:
        return next(self._frames, "{}")


observations = objects(
    text=st.text(),
    tools=st.lists(objects(name=st.text(), description=st.text(), input_schema=st.just({})), max_size=2),
    result=st.text() | objects(content=content, is_error=st.booleans()),
    error=objects(error_type=st.just("transport_error"), message=st.text()),
)
frames = st.one_of(
    objects(
        type=st.just("observation"),
        data=objects(
            observation=observations,
            done=st.booleans(),
            reward=st.none() | st.sampled_from([1, 0.5, 1e308, 1e308, math.nan]),
        ),
    ),
    objects(
        type=st.just("error"),
        data=objects(
            code=st.sampled_from(["CAPACITY_REACHED", "VALIDATION_ERROR", "OTHER"]),
            message=st.text(),
            errors=st.lists(objects(loc=st.lists(st.text(), max_size=2), msg=st.text()), max_size=2),
        ),
    ),
    values,
)


LARGE = json.dumps({"type": "observation", "data": {"observation": {}, "done": False, "reward": 1e308}})


@BUDGET
@example([LARGE] * 4)
@given(st.lists(written(frames) | st.binary() | written(frames).map(lambda one: one.decode()), max_size=4))
def test_a_frame_of_an_openenv_server_is_an_observation_or_a_failure(given: list[Any]) -> None:
    async def play() -> None:
        connection: Any = Frames(given)
        session = Session(connection, "http://play", SECONDS)
        steps: list[Callable[[], Any]] = [
            lambda: session.reset({"seed": 1}),
            lambda: session.tools({"type": "list_tools"}),
            lambda: session.step({"guess": "1"}),
            lambda: session.step({"guess": "2"}),
        ]
        for step in steps:
            with contextlib.suppress(Failed, ActionRefused, ServerFull):
                found = await step()
                for tool in found if isinstance(found, list) else ():
                    assert json.dumps(tool_of(tool))
                if isinstance(found, dict):
                    assert isinstance(observation_text(found), str)
                    with contextlib.suppress(ToolError):
                        assert isinstance(result_text(found), str)
            assert session.reward is None or math.isfinite(session.reward)

    asyncio.run(play())


outcomes = objects(
    reward=st.floats(0, 1),
    metrics=st.dictionaries(st.text(), st.floats(0, 1), max_size=3),
    answer=st.text(),
    failed=st.sampled_from([None, "environment", "tool server"]),
    detail=st.text(),
)


@BUDGET
@example(NESTED, 0)
@given(written(outcomes | values) | st.binary(), st.sampled_from([0, 1, None]))
def test_a_result_file_is_a_result_or_a_failure(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, code: int | None
) -> None:
    file: Path = tmp_path_factory.getbasetemp() / "result.json"
    file.write_bytes(text)
    with contextlib.suppress(Failed):
        found = _result_of(code, file, "printed")
        assert all(map(math.isfinite, found.metrics.values()))
