"""Frames (`frames.py`) on asyncio's streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from rljob_runtime.sandbox.frames import LENGTH_BYTES, encode


async def send(stream: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Send a message. Raises `ConnectionError`."""
    stream.write(encode(message))
    await stream.drain()


async def receive(stream: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message; None at the end of the stream."""
    try:
        header = await stream.readexactly(LENGTH_BYTES)
        message: dict[str, Any] = json.loads(await stream.readexactly(int.from_bytes(header, "little")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return message
