"""Framing: messages as a length in eight bytes, then JSON, on pipes and on asyncio's streams.

Supervisors import this module and stay small, so it does not import asyncio.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

log = logging.getLogger(__name__)

LENGTH_BYTES = 8
LONGEST_BYTES = 256 << 20
"""Longest message: a program with its input, or its output. A longer length is an attack."""


class MessageTooLong(ValueError):
    """The message is longer than the other side accepts."""


def encode(message: dict[str, Any]) -> bytes:
    """Encode a message.

    Raises `MessageTooLong`.
    """
    body = json.dumps(message).encode()
    if len(body) > LONGEST_BYTES:
        raise MessageTooLong(f"a message of {len(body)} bytes; at most {LONGEST_BYTES} would be right")
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def write_frame(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write a message to a pipe."""
    stream.write(encode(message))
    stream.flush()


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """Read the next message from a pipe, or return None at its end."""
    header = _exactly(stream, LENGTH_BYTES)
    body = None if header is None else _exactly(stream, int.from_bytes(header, "little"))
    return None if body is None else json.loads(body)


async def send(stream: StreamWriter, message: dict[str, Any]) -> None:
    """Send a message.

    Raises `ConnectionError`, and `MessageTooLong` before anything is sent.
    """
    stream.write(encode(message))
    await stream.drain()


async def receive(stream: StreamReader) -> dict[str, Any] | None:
    """Receive the next message, or return None at the end of the stream and for an invalid message.

    After an invalid message the stream cannot be used again.
    """
    try:
        length = int.from_bytes(await stream.readexactly(LENGTH_BYTES), "little")
        if length > LONGEST_BYTES:
            log.warning("a message of %d bytes is announced; at most %d are accepted", length, LONGEST_BYTES)
            return None
        message = json.loads(await stream.readexactly(length))
    except (EOFError, ConnectionError):
        return None
    except ValueError as error:
        log.warning("a message is no JSON: %s", error)
        return None
    return message if isinstance(message, dict) else None


def _exactly(stream: BinaryIO, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = stream.read(count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
