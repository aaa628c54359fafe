"""Model: chat completions of one attempt, asked again while the gateway is away."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from rljob_env.episode import Assignment, Json
from rljob_env.failures import EpisodeOver, Failed, Part
from rljob_env.retrying import answered, error_of

RETRY_HEADER = "x-stainless-retry-count"
"""Says that a request was sent before: the gateway then answers with the recorded turn, if there is one."""
LIMITS = ("episode_limit_reached", "context_length_exceeded")
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 120.0
"""An answer that takes longer is asked for again, in case that its connection is dead."""


class LimitReached(Exception):
    """The episode has no further turn. It is the policy's doing."""


class Model:
    """The model of one attempt. `away`: it does not answer at the moment."""

    def __init__(self, http: httpx.AsyncClient, assignment: Assignment) -> None:
        self.away = False
        self.sent_again = 0
        self._http = http
        self._url = f"{assignment.base_url}/chat/completions"
        self._headers = {"Authorization": f"Bearer {assignment.api_key}"}
        self._model = assignment.model

    async def answer(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Json]) -> Json:
        """Return the model's message; wait for it while the model loads.

        Raises `LimitReached` if the episode has no further turn, `EpisodeOver` if the attempt has ended, and `Failed`
        if the gateway refuses the request or its answer has no message.
        """
        body: Json = {"model": self._model, "messages": list(messages)} | ({"tools": list(tools)} if tools else {})
        return await self._asked(json.dumps(body, ensure_ascii=False, allow_nan=False).encode(), 0)

    async def answer_again(self, request: str) -> Json:
        """Return the message that answers a request which another runner sent: the recorded one, if there is one."""
        return await self._asked(request.encode(), 1)

    async def _asked(self, body: bytes, tries: int) -> Json:
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)

        async def send(tries: int) -> httpx.Response:
            headers = {**self._headers, "Content-Type": "application/json", RETRY_HEADER: str(tries)}
            return await self._http.post(self._url, content=body, headers=headers, timeout=timeout)

        response = await answered(send, self._wait, tries)
        self.away = False
        return _message(response)

    def _wait(self, seconds: float, why: str) -> None:
        self.away = True
        self.sent_again += 1


def _message(response: httpx.Response) -> Json:
    if response.status_code == 200:
        try:
            message = response.json()["choices"][0]["message"]
            known = ("role", "content", "reasoning_content", "tool_calls")
            return {name: message[name] for name in known if message.get(name) is not None or name == "content"}
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise Failed(Part.ENVIRONMENT, f"the gateway's answer is none: {response.text[:200]}") from error
    code, text = error_of(response)
    if response.status_code in (401, 403):
        raise EpisodeOver(text)
    if code in LIMITS:
        raise LimitReached(text)
    raise Failed(Part.ENVIRONMENT, f"the gateway refuses the request: {text}")
