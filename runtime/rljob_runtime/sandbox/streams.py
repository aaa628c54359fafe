"""Frames (`framing.py`) on asyncio's streams."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from rljob_runtime.sandbox.framing import LENGTH_BYTES, LONGEST_BYTES, encode

log = logging.getLogger(__name__)


async def send(stream: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Send a message. Raises `ConnectionError`, and `MessageTooLong` before anything is sent."""
    stream.write(encode(message))
    await stream.drain()


async def receive(stream: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message; None at the end of the stream, and for what is no message of ours: with who sends that nobody
    can go on to speak."""
    try:
        length = int.from_bytes(await stream.readexactly(LENGTH_BYTES), "little")
        if length > LONGEST_BYTES:
            log.warning("a message of %d bytes is announced; at most %d are believed", length, LONGEST_BYTES)
            return None
        message = json.loads(await stream.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except ValueError as error:
        log.warning("a message is no JSON: %s", error)
        return None
    return message if isinstance(message, dict) else None
