"""Messages on a pipe: a length in eight bytes, then JSON."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

LENGTH_BYTES = 8
LONGEST_BYTES = 256 << 20
"""Of a message: a program with what it reads, or what it wrote. A length beyond that is no length but an attack."""


class MessageTooLong(ValueError):
    """More than the other side would take."""


def encode(message: dict[str, Any]) -> bytes:
    """A message as it travels. Raises `MessageTooLong`."""
    body = json.dumps(message).encode()
    if len(body) > LONGEST_BYTES:
        raise MessageTooLong(f"a message of {len(body)} bytes; at most {LONGEST_BYTES} would be right")
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
