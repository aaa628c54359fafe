"""A conversation is asked for until the gateway gives it, and a part of it is none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rljob_env import conversation, retrying
from rljob_env.conversation import conversation_of
from rljob_env.episode import Assignment, Attempt
from rljob_env.failures import EpisodeOver, Failed

MESSAGES = [{"role": "user", "content": "2+3"}, {"role": "assistant", "content": "5"}]


def error(status: int, code: str, message: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": message}})


async def asked(answers: Iterator[httpx.Response | Exception], seconds: float = 60.0) -> Any:
    def answer(request: httpx.Request) -> httpx.Response:
        assert (str(request.url), request.headers["Authorization"]) == ("http://gw/v1/conversation", "Bearer key")
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    assignment = Assignment(Attempt("0.0.0", 1), {}, [], time.monotonic() + seconds, "http://gw/v1", "key", "policy")
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        return await conversation_of(http, assignment)


@pytest.mark.parametrize(
    "before",
    [[], [httpx.ConnectError("refused")], [error(503, "memory_full", "try again"), httpx.ReadError("cut off")]],
)
async def test_it_is_asked_for_until_it_is_there(before: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "delay", lambda failures, response: 0.0)
    assert await asked(iter([*before, httpx.Response(200, json={"messages": MESSAGES})])) == MESSAGES


async def test_a_gateway_of_a_version_before_has_none() -> None:
    """An operator replaces the runners of a running job, and leaves its coordinator's pod."""
    assert await asked(iter([error(404, "unknown_route", "GET /v1/conversation")])) is None


async def test_an_attempt_without_messages_has_none() -> None:
    assert await asked(iter([httpx.Response(200, json={"messages": None})])) is None


async def test_an_attempt_that_has_ended_has_nothing_to_report() -> None:
    with pytest.raises(EpisodeOver, match="it has ended"):
        await asked(iter([error(403, "attempt_ended", "it has ended")]))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (error(400, "bad_request", "no"), "no"),
        (httpx.Response(200, text="{"), "gives no conversation"),
        (httpx.Response(200, json=[]), "gives no conversation"),
    ],
)
async def test_what_is_no_conversation_is_a_failure_of_ours(answer: httpx.Response, text: str) -> None:
    with pytest.raises(Failed, match=text):
        await asked(iter([answer]))


async def test_the_wait_ends_soon_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "LATE_SECONDS", 0.1)
    away = iter(lambda: httpx.ConnectError("refused"), None)
    with pytest.raises(Failed, match="gave no conversation within"):
        await asked(away, seconds=-1.0)
