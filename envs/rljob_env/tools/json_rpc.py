"""JSON-RPC over streamable HTTP: one request, and its answer as JSON or in a stream of events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from rljob_env.episode import Json

MOST_ANSWER_BYTES = 16 << 20


class Malformed(Exception):
    """A server's answer is none."""


class RpcError(Exception):
    """A server's answer is an error. `code`: that of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def result_of(response: httpx.Response, id: int, reply: Callable[[Json], Awaitable[None]]) -> Json:
    """Return the result for a request's id. `reply` gets what the server asks meanwhile.

    Raises `Malformed`, `RpcError`, and httpx's errors.
    """
    if response.headers.get("Content-Type", "").partition(";")[0].strip() == "text/event-stream":
        texts = _events(response)
    else:
        texts = _whole(response)
    async for text in texts:
        message = _message(text)
        if "method" in message:
            await reply(message)
        elif message.get("id") == id:
            return _result(message)
    raise Malformed("the answer has no result")


def _result(message: Json) -> Json:
    error = message.get("error")
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        raise RpcError(error["code"], str(error.get("message", "")))
    if not isinstance(message.get("result"), dict):
        raise Malformed("the answer has neither a result nor an error")
    return dict(message["result"])


def _message(text: bytes) -> Json:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the answer is no JSON: {text[:100]!r}") from error
    if not isinstance(found, dict):
        raise Malformed(f"the answer is no JSON-RPC: {text[:100]!r}")
    return found


async def _whole(response: httpx.Response) -> AsyncIterator[bytes]:
    yield b"".join([part async for part in _bounded(response)])


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the data of each event that has some."""
    left, data = b"", []
    async for part in _bounded(response):
        *lines, left = (left + part).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line.strip() and data:
                yield b"\n".join(data)
                data = []
    if data:
        yield b"\n".join(data)


async def _bounded(response: httpx.Response) -> AsyncIterator[bytes]:
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > MOST_ANSWER_BYTES:
            raise Malformed(f"the answer is longer than {MOST_ANSWER_BYTES} bytes")
        yield part
