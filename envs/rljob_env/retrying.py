"""Retrying: requests that are sent again while what they ask is away, and how long to wait before that."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import httpx

FIRST_SECONDS = 0.2
MOST_SECONDS = 5.0
AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504))
"""Statuses of what may pass."""


async def answered(
    send: Callable[[int], Awaitable[httpx.Response]], wait: Callable[[float, str], None], tries: int = 0
) -> httpx.Response:
    """Send a request until its answer is one that does not pass, and return that.

    `send` is given the number of times that the request was sent before, `tries` at first. `wait` is given the seconds
    until the next time, and what went wrong. It ends the waiting by an exception.
    """
    while True:
        response: httpx.Response | None = None
        try:
            response = await send(tries)
            if response.status_code not in AGAIN:
                return response
            why = error_of(response)[1]
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
        tries += 1
        seconds = delay(tries, response)
        wait(seconds, why)
        await asyncio.sleep(seconds)


def delay(failures: int, response: httpx.Response | None = None) -> float:
    """Return the seconds before the next try: twice as many after each failure, spread, or what the server asks for."""
    seconds = min(MOST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, 16))
    asked = response.headers.get("Retry-After", "") if response is not None else ""
    wanted = float(asked) if asked.isascii() and asked.isdigit() else 0.0
    # Runners that lost the same gateway do not return to it in one moment.
    return max(seconds * random.uniform(0.5, 1.0), min(wanted, MOST_SECONDS))


def error_of(response: httpx.Response) -> tuple[str, str]:
    """Return code and message of an error in OpenAI's form; the status and the text of another."""
    try:
        error = response.json()["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "", f"status {response.status_code}: {response.text[:300]}"
