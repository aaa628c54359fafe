"""Conversation: the messages of an attempt, as its agent sent and received them, from the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from rljob_env.episode import Assignment, Json
from rljob_env.failures import EpisodeOver, Failed, Part
from rljob_env.retrying import answered, error_of

CONNECT_SECONDS = 5.0
LATE_SECONDS = 4.0
"""Time after the deadline in which the gateway answers. The reward's function runs after it, so this is less than
`config.SCORE_SECONDS`."""


async def conversation_of(http: httpx.AsyncClient, assignment: Assignment) -> list[Json] | None:
    """Return the messages up to the main conversation's last answer; None if no turn was asked for by messages.

    None, too, for a gateway of an operator before this version: it lives as long as its coordinator's pod.
    Raises `EpisodeOver`, and `Failed` if the gateway does not answer in time: a part of it is no conversation.
    """
    bound = assignment.seconds_left() + LATE_SECONDS
    try:
        async with asyncio.timeout(bound):
            response = await _answered(http, assignment)
    except TimeoutError as error:
        raise Failed(Part.ENVIRONMENT, f"the gateway gave no conversation within {bound:.3g} s") from error
    if response.status_code == 404:
        return None
    if response.status_code == 403:
        raise EpisodeOver(error_of(response)[1])
    try:
        if response.status_code != 200:
            raise ValueError(error_of(response)[1])
        # A conversation may be long, and the runner's heartbeats must go on.
        found = await asyncio.to_thread(json.loads, response.content)
        return None if found["messages"] is None else list(found["messages"])
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(Part.ENVIRONMENT, f"the gateway gives no conversation: {error}") from error


async def conversation_to_score(
    http: httpx.AsyncClient, assignment: Assignment, answer: str | None = None
) -> tuple[Sequence[Mapping[str, Any]], str | None]:
    """Return the messages and the answer that a reward's function is called with: the prompt's without a conversation.

    `answer`: what a program says that it is; None: the model's last one. Raises as `conversation_of`.
    """
    messages = await conversation_of(http, assignment)
    if not messages:
        return assignment.messages, answer
    return messages, (messages[-1].get("content") or "") if answer is None else answer


async def _answered(http: httpx.AsyncClient, assignment: Assignment) -> httpx.Response:
    """Return the gateway's answer; ask again while it is away."""
    url, headers = f"{assignment.base_url}/conversation", {"Authorization": f"Bearer {assignment.api_key}"}
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    return await answered(lambda tries: http.get(url, headers=headers, timeout=timeout), lambda seconds, why: None)
