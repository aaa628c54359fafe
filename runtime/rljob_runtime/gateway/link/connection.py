"""Connection: frames on a stream, and the greeting of both ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rljob_runtime.gateway.link.frames import (
    GREETING_LIMITS,
    PREFIX,
    Frame,
    FrameError,
    FrameLimits,
    sizes_of,
    text,
)
from rljob_runtime.gateway.link.messages import PROTOCOL
from rljob_runtime.scheduling.backoff import Backoff


@dataclass(frozen=True)
class LinkSettings:
    """Bounds of the link."""

    limits: FrameLimits = field(default_factory=FrameLimits)
    calls: int = 8192
    """Calls under way: more than the gateway has requests (`GatewayBounds.calls`)."""
    greeting_seconds: float = 30.0
    answer_seconds: float = 30.0
    """Longest wait for an answer, beyond the time that the call itself states. A turn states its deadline."""
    backoff: Backoff = field(default_factory=lambda: Backoff(0.1, 2.0, 2.0))
    """Delays between attempts to connect."""


class LinkRefused(FrameError):
    """The other end speaks another version. The message says which."""


class Connection:
    """Frames of one connection. `send` may be called by several tasks, `receive` by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: FrameLimits) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits

    async def send(self, frame: Frame) -> None:
        """Send a frame. Raises `FrameTooLong` before anything is sent, and `OSError`."""
        self.post(frame)
        await self._writer.drain()

    def post(self, frame: Frame) -> None:
        """Send a short frame without waiting until the other end reads. Raises `FrameTooLong`."""
        self._writer.write(frame.encode(self._limits))

    async def receive(self, limits: FrameLimits | None = None) -> Frame | None:
        """Return the next frame; None at the end. Raises `FrameError` and `OSError`."""
        try:
            prefix = await self._reader.readexactly(PREFIX.size)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise FrameError("the connection ended inside a frame") from None
            return None
        header, payload = sizes_of(prefix, limits or self._limits)
        try:
            return Frame.decode(await self._reader.readexactly(header), await self._reader.readexactly(payload))
        except asyncio.IncompleteReadError:
            raise FrameError("the connection ended inside a frame") from None

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def greet(connection: Connection, seconds: float) -> None:
    """Introduce the gateway. Raises `LinkRefused`, `FrameError`, `TimeoutError` and `OSError`."""
    async with asyncio.timeout(seconds):
        await connection.send(Frame("hello", {"protocol": PROTOCOL}))
        answer = await connection.receive(GREETING_LIMITS)
    if answer is None:
        raise FrameError("the coordinator ended the connection before its greeting")
    if answer.kind == "refused":
        raise LinkRefused(text(answer.fields, "text"))
    if answer.kind != "welcome":
        raise FrameError(f"a {answer.kind[:40]!r} instead of a greeting")


async def welcome(connection: Connection, seconds: float) -> bool:
    """Receive the gateway's greeting; return whether it speaks the same version.

    Raises `FrameError`, `TimeoutError` and `OSError`.
    """
    async with asyncio.timeout(seconds):
        hello = await connection.receive(GREETING_LIMITS)
        if hello is None:
            return False
        if hello.kind != "hello":
            raise FrameError(f"a {hello.kind[:40]!r} instead of a greeting")
        given = hello.fields.get("protocol")
        if given == PROTOCOL:
            await connection.send(Frame("welcome", {"protocol": PROTOCOL}))
            return True
        reason = f"the gateway speaks version {str(given)[:40]} of the link; the coordinator speaks {PROTOCOL}"
        await connection.send(Frame("refused", {"text": reason}))
        raise LinkRefused(reason)
