"""Session: one episode of an OpenEnv server, over a WebSocket of its own.

The server keeps the environment of a session while its WebSocket is open. What fails there is a failure of ours: the
rewards of an episode that broke off say nothing of the policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any, NoReturn

from rljob_env.episode import Json
from rljob_env.failures import Failed, Part
from rljob_env.openenv.actions import ActionRefused
from rljob_env.results import finite
from rljob_env.retrying import delay

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

CONNECT_SECONDS = 5.0
STEP_SECONDS = 60.0
"""Longest time of an answer of a server that is alive."""
CLOSE_SECONDS = 2.0
MOST_TRIES = 4
MOST_MESSAGE_BYTES = 16 << 20
NOT_ACCEPTED = frozenset((429, 503))
FULL, INVALID = "CAPACITY_REACHED", "VALIDATION_ERROR"


class ServerFull(Exception):
    """The server has as many sessions as it can hold."""


class Session:
    """A session. `seconds`: the time of one answer."""

    def __init__(self, connection: ClientConnection, url: str, seconds: float) -> None:
        self.reward: float | None = None
        """The sum of the rewards so far; None if there was none."""
        self.done = False
        self.waiting = False
        """Whether the server owes an answer."""
        self.steps = 0
        self.step_seconds = 0.0
        self._connection = connection
        self._url = url
        self._seconds = seconds

    async def reset(self, arguments: Json) -> Json:
        """Begin the episode; return its first observation. Raises `Failed`, `ServerFull`."""
        try:
            return await self._observe("reset", arguments)
        except ActionRefused as error:
            raise self._failed(f"does not take {arguments} for a reset: {error}") from error

    async def step(self, action: Json) -> Json:
        """Return the observation after an action. Raises `Failed`, and `ActionRefused` if it is none."""
        began = time.monotonic()
        try:
            observation = await self._observe("step", action)
            self.steps += 1
            return observation
        finally:
            self.step_seconds += time.monotonic() - began

    async def tools(self, action: Json) -> list[Any]:
        """Return the tools that an action lists. Raises `Failed`."""
        try:
            found = (await self._observe("step", action)).get("tools")
        except ActionRefused as error:
            raise self._failed(f"does not list its tools: {error}") from error
        if not isinstance(found, list):
            raise self._failed("lists no tools")
        return found

    async def close(self) -> None:
        """End the session."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._connection.close()

    async def _observe(self, kind: str, data: Json) -> Json:
        answer = await self._ask(kind, data)
        try:
            found = answer["data"]
            if answer["type"] == "error":
                self._refused(kind, found)
            observation = dict(found["observation"])
            self.done = self.done or bool(found["done"])
            if found.get("reward") is not None:
                reward = finite(found["reward"], "the reward")
                self.reward = finite((self.reward or 0.0) + reward, "the sum of the rewards")
        except (KeyError, TypeError, ValueError) as error:
            raise self._failed(f"answers a {kind} with {str(answer)[:200]}: {error}") from error
        return observation

    def _refused(self, kind: str, error: Json) -> NoReturn:
        code, message = error["code"], str(error["message"])
        if code == FULL:
            raise ServerFull(message)
        if code == INVALID:
            raise ActionRefused(_reasons(error.get("errors") or ()) or message)
        raise self._failed(f"failed in {kind}: {code}: {message}")

    async def _ask(self, kind: str, data: Json) -> Json:
        from websockets.exceptions import ConnectionClosed, InvalidState

        self.waiting = True
        try:
            async with asyncio.timeout(self._seconds):
                # What a server said before it closed a connection is still to be read.
                with contextlib.suppress(ConnectionClosed):
                    await self._connection.send(json.dumps({"type": kind, "data": data}))
                text = await self._connection.recv()
        except TimeoutError as error:
            raise self._failed(f"did not answer a {kind} within {self._seconds:g} s") from error
        except (ConnectionClosed, InvalidState) as error:
            raise self._failed(f"broke off in {kind}: {error}") from error
        self.waiting = False
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._failed(f"answers a {kind} with {text[:200]!r}") from error

    def _failed(self, what: str) -> Failed:
        return Failed(Part.ENVIRONMENT, f"the OpenEnv server {self._url} {what}")


async def connected(url: str, seconds: float) -> Session:
    """Return a new session. A server that is not there yet is asked again. Raises `Failed`."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus

    address = f"ws{url.removeprefix('http').rstrip('/')}/ws"
    tries = 0
    while True:
        tries += 1
        try:
            # A server that is busy with a step may answer no ping: `seconds` bounds its answers.
            connection = await connect(
                address, open_timeout=CONNECT_SECONDS, max_size=MOST_MESSAGE_BYTES, ping_interval=None
            )
            return Session(connection, url, seconds)
        except (OSError, TimeoutError, InvalidHandshake) as error:
            passes = not isinstance(error, InvalidStatus) or error.response.status_code in NOT_ACCEPTED
            if not passes or tries == MOST_TRIES:
                raise Failed(Part.ENVIRONMENT, f"the OpenEnv server {url} cannot be reached: {error!r}") from error
        await asyncio.sleep(delay(tries))


def _reasons(errors: Any) -> str:
    """Return what is wrong with each field of an action."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors)
