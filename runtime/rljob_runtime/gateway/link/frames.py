"""Frames: the messages of the link as bytes.

    magic, header length, payload length (network order)     header: JSON with a `kind`     payload: blobs, end to end

Tokens, log-probs and bodies are blobs, so they cost no parsing. Nothing is unpickled. A frame that breaks a rule raises
`FrameError`, and nothing else is raised whatever the bytes are.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = b"RLL1"
PREFIX = struct.Struct("!4sII")
TOKEN, LOGPROB = "i", "f"
"""Types of arrays. Both ends are on one machine, so its order of bytes is theirs."""
MOST_WHOLE = 2**63 - 1

Fields = Mapping[str, Any]


class FrameError(Exception):
    """Bytes are no frame, or a frame lacks what its kind needs. The connection ends."""


class FrameTooLong(ValueError):
    """A frame is longer than the other end accepts. Nothing was sent."""


@dataclass(frozen=True)
class FrameLimits:
    """Longest header and payload, in bytes."""

    header: int = 16 << 20
    payload: int = 64 << 20


GREETING_LIMITS = FrameLimits(header=4096, payload=0)
"""Before the other end has said its version."""


@dataclass(frozen=True)
class Frame:
    """A message: its kind, its fields as JSON values, and its blobs."""

    kind: str
    fields: Fields
    blobs: Sequence[bytes] = ()

    def encode(self, limits: FrameLimits) -> bytes:
        """Return the bytes. Raises `FrameTooLong`."""
        sizes = [len(blob) for blob in self.blobs]
        header = json.dumps({**self.fields, "kind": self.kind, "blobs": sizes}, separators=(",", ":")).encode()
        if len(header) > limits.header or sum(sizes) > limits.payload:
            raise FrameTooLong(
                f"a {self.kind} of {len(header)} and {sum(sizes)} bytes; "
                f"at most {limits.header} and {limits.payload} would be right"
            )
        return b"".join((PREFIX.pack(MAGIC, len(header), sum(sizes)), header, *self.blobs))

    @classmethod
    def decode(cls, header: bytes, payload: bytes) -> Frame:
        """Return the frame of a header and a payload. Raises `FrameError`."""
        try:
            fields = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a header is no JSON, or nested too deeply: {str(error)[:200]}") from None
        if not isinstance(fields, dict):
            raise FrameError("a header is no object")
        kind, sizes = fields.pop("kind", None), fields.pop("blobs", None)
        if not isinstance(kind, str) or not isinstance(sizes, list) or not all(map(is_whole, sizes)):
            raise FrameError("a header lacks its kind, or the sizes of its blobs")
        if sum(sizes) != len(payload):
            raise FrameError(f"a payload of {len(payload)} bytes for blobs of {sum(sizes)}")
        blobs, start = [], 0
        for size in sizes:
            blobs.append(payload[start : start + size])
            start += size
        return cls(kind, fields, blobs)


def sizes_of(prefix: bytes, limits: FrameLimits) -> tuple[int, int]:
    """Return the lengths of header and payload that a prefix announces. Raises `FrameError`."""
    magic, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise FrameError(f"no frame of the link begins with {magic!r}")
    if header > limits.header or payload > limits.payload:
        raise FrameError(f"a frame of {header} and {payload} bytes is announced")
    return header, payload


def is_whole(value: object) -> bool:
    """Return whether a JSON value is a whole number that a database can keep, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_WHOLE


def whole(fields: Fields, name: str) -> int:
    """Return a whole number, 0 or more. Raises `FrameError`."""
    value = fields.get(name)
    if not isinstance(value, int) or not is_whole(value):
        raise _wrong(name, "a whole number", value)
    return value


def number(fields: Fields, name: str) -> float:
    """Return a number. Raises `FrameError`."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise _wrong(name, "a number", "a larger one") from None


def text(fields: Fields, name: str) -> str:
    """Return a text. Raises `FrameError`, for one with half a character too: no database takes it."""
    value = fields.get(name)
    if not isinstance(value, str) or not has_bytes(value):
        raise _wrong(name, "a text", value)
    return value


def flag(fields: Fields, name: str) -> bool:
    """Return a truth value. Raises `FrameError`."""
    value = fields.get(name)
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def listed(fields: Fields, name: str) -> list[Any]:
    """Return a list. Raises `FrameError`."""
    value = fields.get(name)
    if not isinstance(value, list):
        raise _wrong(name, "a list", value)
    return value


def mapped(fields: Fields, name: str) -> dict[str, Any]:
    """Return an object. Raises `FrameError`."""
    value = fields.get(name)
    if not isinstance(value, dict):
        raise _wrong(name, "an object", value)
    return value


def blobs(frame: Frame, count: int) -> Sequence[bytes]:
    """Return the blobs of a frame that must have `count`. Raises `FrameError`."""
    if len(frame.blobs) != count:
        raise FrameError(f"a {frame.kind[:40]} with {len(frame.blobs)} blobs; {count} would be right")
    return frame.blobs


def to_bytes(kind: str, values: Sequence[int] | Sequence[float]) -> bytes:
    """Return numbers as a blob. Log-probs are float32, as engines give them."""
    return (values if isinstance(values, array) and values.typecode == kind else array(kind, values)).tobytes()


def tokens_of(blob: bytes) -> array[int]:
    """Return the tokens of a blob. Raises `FrameError`."""
    found: array[int] = array(TOKEN)
    return _filled(found, blob)


def logprobs_of(blob: bytes) -> array[float]:
    """Return the log-probs of a blob. Raises `FrameError`."""
    found: array[float] = array(LOGPROB)
    return _filled(found, blob)


def _filled(target: array[Any], blob: bytes) -> array[Any]:
    if len(blob) % target.itemsize:
        raise FrameError(f"an array of {len(blob)} bytes; {target.itemsize} an item would be right")
    target.frombytes(blob)
    return target


def has_bytes(value: str) -> bool:
    """Return whether a text can be encoded: one with half a character cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong(name: str, right: str, value: object) -> FrameError:
    return FrameError(f"{name} is {str(value)[:100]!r}; {right} would be right")
