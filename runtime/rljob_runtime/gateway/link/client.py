"""Link client: the gateway's end. It is the coordinator for the gateway: `Turns` and `Environments`.

A call while the coordinator is away fails immediately with `PeerGone`, and so do the calls under way when a connection
breaks: their callers know which may be sent again. The client connects again in the background until it is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rljob_runtime.gateway import own_share
from rljob_runtime.gateway.link.connection import Connection, LinkSettings, greet
from rljob_runtime.gateway.link.frames import Frame, FrameError, FrameTooLong, whole
from rljob_runtime.gateway.link.messages import (
    Call,
    CalledCall,
    DoneCall,
    HeartbeatCall,
    HistoryCall,
    LeaseCall,
    assignment_of,
    attempts_of,
    call_frame,
    error_of,
    stored_turn_of,
    turn_of,
)
from rljob_runtime.protocols.environments import Assignment, EpisodeReport, ToolCall
from rljob_runtime.protocols.errors import PeerError, PeerGone, PeerTimeout
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn, StoredTurn, TurnCall, TurnRefused

log = logging.getLogger(__name__)

ANY = range(1 << 62)
"""Any number of parts."""


@dataclass
class LinkClientStats:
    """Totals of the gateway's end."""

    connections: int = 0
    """Connections on which the coordinator answered the greeting."""
    broken_calls: int = 0
    """Calls that a broken connection ended."""
    late_answers: int = 0
    """Frames of answers that no caller waits for."""


@dataclass
class _Waiting:
    """A call under way. `read`: reads a part of its answer; `counts`: how many parts an answer may have."""

    read: Callable[[Frame], Any]
    counts: Container[int]
    parts: list[Any]
    answer: asyncio.Future[list[Any] | PeerError]
    settled_at: float = 0.0
    """When the answer was here, on the clock `time.monotonic`."""

    def settle(self, answer: list[Any] | PeerError) -> None:
        """End the wait. An error is a result, so that one without a caller stays silent."""
        if not self.answer.done():
            self.settled_at = time.monotonic()
            self.answer.set_result(answer)


class LinkClient:
    """The coordinator behind a socket. Use as an async context manager.

    A call raises what the coordinator's raises, `PeerGone` while it is away, and `PeerTimeout` if it does not answer.
    A turn waits until its caller cancels it: its deadline is the caller's.
    """

    def __init__(
        self,
        socket: Path,
        settings: LinkSettings | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.stats = LinkClientStats()
        self._socket = socket
        self._settings = settings or LinkSettings()
        self._sleep = sleep
        self._connection: Connection | None = None
        self._away = "the coordinator has not answered yet"
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._places = asyncio.Semaphore(self._settings.calls)
        self._connecting: asyncio.Task[None] | None = None

    @property
    def why_away(self) -> str | None:
        """Why no connection is open; None while one is."""
        return None if self._connection is not None else self._away

    async def __aenter__(self) -> Self:
        """Start to connect; does not wait for it."""
        self._connecting = asyncio.create_task(self._connect_for_ever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `close`."""
        await self.close()

    async def close(self) -> None:
        """Close the connection for good. Calls under way fail with `PeerGone`."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)

    # --- Turns ---

    async def turn(self, call: TurnCall) -> RecordedTurn:
        """See `Turns`. A request that is longer than a frame raises `TurnRefused`."""
        found: RecordedTurn = (await self._ask(call, turn_of, (1,), None))[0]
        return found

    async def history(self, episode: EpisodeAttempt, newest: bool = False) -> Sequence[StoredTurn]:
        """See `Turns`."""
        return await self._ask(HistoryCall(episode, newest), stored_turn_of, ANY, self._settings.answer_seconds)

    # --- Environments ---

    async def lease(
        self, environment: str, runner: str, wait_seconds: float, most: int = 1, journals: bool = False
    ) -> Sequence[Assignment]:
        """See `Environments`."""
        call = LeaseCall(environment, runner, wait_seconds, most, journals)
        return await self._ask(call, assignment_of, range(most + 1), wait_seconds + self._settings.answer_seconds)

    async def heartbeat(
        self, environment: str, runner: str, episodes: Sequence[EpisodeAttempt]
    ) -> Sequence[EpisodeAttempt]:
        """See `Environments`."""
        call = HeartbeatCall(environment, runner, episodes)
        found: Sequence[EpisodeAttempt] = (await self._ask(call, attempts_of, (1,), self._settings.answer_seconds))[0]
        return found

    async def called(self, environment: str, runner: str, episode: EpisodeAttempt, call: ToolCall) -> None:
        """See `Environments`."""
        asked = CalledCall(environment, runner, episode, call)
        await self._ask(asked, attempts_of, (0,), self._settings.answer_seconds)

    async def done(self, environment: str, runner: str, episode: EpisodeAttempt, report: EpisodeReport) -> None:
        """See `Environments`."""
        call = DoneCall(environment, runner, episode, report)
        await self._ask(call, attempts_of, (0,), self._settings.answer_seconds)

    # --- calls ---

    async def _ask(
        self, call: Call, read: Callable[[Frame], Any], counts: Container[int], seconds: float | None
    ) -> list[Any]:
        """Return the parts of the answer."""
        try:
            async with asyncio.timeout(seconds), self._places:
                return await self._asked(call, read, counts)
        except TimeoutError:
            raise PeerTimeout(f"the coordinator gave no answer within {seconds:g} s") from None

    async def _asked(self, call: Call, read: Callable[[Frame], Any], counts: Container[int]) -> list[Any]:
        connection = self._connection
        if connection is None:
            raise PeerGone(self._away)
        number = next(self._numbers)
        answer: asyncio.Future[list[Any] | PeerError] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[number] = _Waiting(read, counts, [], answer)
        try:
            await connection.send(call_frame(number, call))
            sent = time.monotonic()
            found = await waiting.answer
            own_share.waited(waiting.settled_at - sent)
        except asyncio.CancelledError:
            if self._connection is connection:
                connection.post(Frame("cancel", {"id": number}))
            raise
        except FrameTooLong as error:
            kind = TurnRefused if isinstance(call, TurnCall) else PeerGone
            raise kind(f"the request is too long: {error}") from None
        except OSError as error:
            raise PeerGone(f"the connection to the coordinator broke: {error}") from error
        finally:
            self._waiting.pop(number, None)
        if isinstance(found, PeerError):
            raise found
        return found

    # --- the connection ---

    async def _connect_for_ever(self) -> None:
        failures = 0
        try:
            while True:
                answered = self.stats.connections
                away = f"the coordinator is away: {await self._hold_connection()}"
                failures = 1 if self.stats.connections > answered else failures + 1
                log.log(logging.DEBUG if away == self._away else logging.WARNING, "%s", away)
                self._break(away)
                await self._sleep(self._settings.backoff.delay(failures) or self._settings.backoff.maximum)
        finally:
            self._break("the link is closed")

    async def _hold_connection(self) -> str:
        """Receive answers until the connection ends; return why it did."""
        connection = None
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket)
            connection = Connection(reader, writer, self._settings.limits)
            await greet(connection, self._settings.greeting_seconds)
            self._connection = connection
            self.stats.connections += 1
            log.info("the coordinator answers")
            while (frame := await connection.receive()) is not None:
                self._take(frame)
            return "the coordinator ended the connection"
        except TimeoutError:
            return f"the coordinator sent no greeting within {self._settings.greeting_seconds:g} s"
        except (FrameError, OSError) as error:
            return str(error)
        except Exception as error:
            log.exception("the link to the coordinator failed unexpectedly")
            return f"{type(error).__name__}: {error}"
        finally:
            self._connection = None
            if connection is not None:
                connection.close()

    def _break(self, why: str) -> None:
        """End the calls under way."""
        self._away = why
        for waiting in self._waiting.values():
            self.stats.broken_calls += 1
            waiting.settle(PeerGone(self._away))

    def _take(self, frame: Frame) -> None:
        """Take a part, an end or an error to its call. Raises `FrameError`."""
        waiting = self._waiting.get(whole(frame.fields, "id"))
        if waiting is None:
            self.stats.late_answers += 1
        elif frame.kind == "part":
            waiting.parts.append(waiting.read(frame))
        elif frame.kind == "end":
            if len(waiting.parts) not in waiting.counts:
                raise FrameError(f"an answer of {len(waiting.parts)} parts")
            waiting.settle(waiting.parts)
        elif frame.kind == "error":
            waiting.settle(error_of(frame))
        else:
            raise FrameError(f"a frame of the kind {frame.kind[:40]!r} is no answer")
