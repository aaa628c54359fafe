"""Link server: the coordinator's end. It calls the coordinator for the gateway, and survives whatever arrives.

A gateway that leaves, or cancels a call, is no longer answered. What the coordinator does for it goes on: a turn is
stored, and a retry receives it. Only a lease ends with its call, because no runner would receive its episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_runtime.gateway.link.connection import Connection, LinkSettings, welcome
from rljob_runtime.gateway.link.frames import Frame, FrameError, FrameTooLong, whole
from rljob_runtime.gateway.link.messages import (
    ERRORS,
    Call,
    CalledCall,
    DoneCall,
    HeartbeatCall,
    HistoryCall,
    LeaseCall,
    Value,
    call_of,
    error_frame,
    part_frame,
)
from rljob_runtime.protocols.environments import Environments
from rljob_runtime.protocols.errors import PeerGone
from rljob_runtime.protocols.turns import TurnCall, Turns

log = logging.getLogger(__name__)

FORESEEN = tuple(ERRORS.values())


@dataclass
class LinkServerStats:
    """Totals of the coordinator's end."""

    connections: int = 0
    calls: int = 0
    cancelled: int = 0
    """Calls that the gateway no longer waited for, or whose connection broke."""
    refused: int = 0
    """Calls beyond the bound of those under way."""
    malformed: int = 0
    """Connections that ended by a frame that is none."""
    unforeseen: int = 0
    """Calls that raised an error that no caller knows."""


@contextlib.asynccontextmanager
async def serve_link(
    socket: Path, turns: Turns, environments: Environments, settings: LinkSettings | None = None
) -> AsyncIterator[LinkServer]:
    """Serve on a socket while the context is open. Its folder is made, or must be this user's alone.

    Raises `OSError`.
    """
    _make_private(socket.parent)
    link = LinkServer(turns, environments, settings or LinkSettings())
    socket.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(link.connected, socket)
    try:
        yield link
    finally:
        server.close()
        await link.close()


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder}: other users can reach the coordinator through it; mode 0700 would be right")


class LinkServer:
    """The calls of all connections."""

    def __init__(self, turns: Turns, environments: Environments, settings: LinkSettings) -> None:
        self.stats = LinkServerStats()
        self._turns = turns
        self._environments = environments
        self._settings = settings
        self._connections: set[asyncio.Task[None]] = set()
        self._work: set[asyncio.Task[Sequence[Value]]] = set()
        self._closed = False

    @property
    def used(self) -> bool:
        """Tell whether a gateway is connected."""
        return bool(self._connections)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the calls of one connection until it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.stats.connections += 1
        connection = Connection(reader, writer, self._settings.limits)
        calls: dict[int, asyncio.Task[None]] = {}
        try:
            if await welcome(connection, self._settings.greeting_seconds):
                while (frame := await connection.receive()) is not None:
                    self._take(connection, calls, frame)
        except FrameError as error:
            self.stats.malformed += 1
            log.warning("a connection of the gateway is closed: %s", error)
        except OSError as error:  # a greeting that is late is one too
            log.info("a connection of the gateway ended: %s", error or type(error).__name__)
        except asyncio.CancelledError:
            # asyncio logs a connection's task that ends as cancelled as an error.
            if not self._closed:
                raise
        finally:
            for call in calls.values():
                call.cancel()
            await asyncio.gather(*calls.values(), return_exceptions=True)
            self._connections.discard(task)
            connection.close()

    async def close(self) -> None:
        """End all connections, and the coordinator's work for them."""
        self._closed = True
        for group in (self._connections, self._work):
            tasks = list(group)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, connection: Connection, calls: dict[int, asyncio.Task[None]], frame: Frame) -> None:
        """Start the call of a frame, or cancel one. Raises `FrameError`."""
        number = whole(frame.fields, "id")
        if frame.kind == "cancel":
            if (found := calls.get(number)) is not None:
                found.cancel()
            return
        if number in calls:
            raise FrameError(f"call {number} is under way already")
        call = call_of(frame)
        self.stats.calls += 1
        task = calls[number] = asyncio.create_task(self._answer(connection, number, call))
        task.add_done_callback(lambda _: calls.pop(number, None))

    async def _answer(self, connection: Connection, number: int, call: Call) -> None:
        frames = await self._frames(number, call)
        try:
            for frame in frames:
                await connection.send(frame)
        except FrameTooLong as error:
            log.error("an answer to the gateway is too long: %s", error)
            await connection.send(error_frame(number, PeerGone(f"the coordinator's answer is too long: {error}")))
        except OSError as error:
            log.info("an answer to the gateway is lost: %s", error)

    async def _frames(self, number: int, call: Call) -> Iterable[Frame]:
        """Return the frames of the answer. An unforeseen error is answered too: its caller would wait for ever."""
        try:
            values = await self._values(call)
            return [*(part_frame(number, value) for value in values), Frame("end", {"id": number})]
        except FORESEEN as error:
            return [error_frame(number, error)]
        except Exception as error:
            self.stats.unforeseen += 1
            log.exception("a call of the gateway ended by an unforeseen error")
            text = f"the coordinator failed: {type(error).__name__}: {error}; its log says more"
            return [error_frame(number, PeerGone(text))]

    async def _values(self, call: Call) -> Sequence[Value]:
        """Return the parts of the answer. A cancelled wait ends the coordinator's work for a lease only."""
        if len(self._work) >= self._settings.calls:
            self.stats.refused += 1
            raise PeerGone(f"{self._settings.calls} calls are under way; try again")
        work = asyncio.create_task(self._asked(call))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.cancelled():
                raise PeerGone("the coordinator ended the call") from None
            self.stats.cancelled += 1
            work.add_done_callback(_log_unforeseen)
            if isinstance(call, LeaseCall):
                work.cancel()
            raise

    async def _asked(self, call: Call) -> Sequence[Value]:
        match call:
            case TurnCall():
                return (await self._turns.turn(call),)
            case HistoryCall(episode, newest):
                return tuple(await self._turns.history(episode, newest))
            case LeaseCall(environment, runner, seconds, most, journals):
                return await self._environments.lease(environment, runner, seconds, most, journals)
            case HeartbeatCall(environment, runner, episodes):
                return (tuple(await self._environments.heartbeat(environment, runner, episodes)),)
            case CalledCall(environment, runner, episode, tool_call):
                await self._environments.called(environment, runner, episode, tool_call)
                return ()
            case DoneCall(environment, runner, episode, report):
                await self._environments.done(environment, runner, episode, report)
                return ()


def _log_unforeseen(work: asyncio.Task[Sequence[Value]]) -> None:
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, FORESEEN):
        log.error("a call that the gateway left ended by an unforeseen error", exc_info=error)
