"""Messages on a pipe: a length in eight bytes, then JSON."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

LENGTH_BYTES = 8


def encode(message: dict[str, Any]) -> bytes:
    """A message as it travels."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def write_frame(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Send a message."""
    stream.write(encode(message))
    stream.flush()


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message; None at the end of the stream."""
    header = _exactly(stream, LENGTH_BYTES)
    body = None if header is None else _exactly(stream, int.from_bytes(header, "little"))
    return None if body is None else json.loads(body)


def _exactly(stream: BinaryIO, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = stream.read(count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
