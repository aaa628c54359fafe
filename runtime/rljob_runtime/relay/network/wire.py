"""Wire: frames, and the handshake between two neighbours of the chain.

A frame is `magic, header length, payload length` (network order), a JSON header with a `type`, and a raw payload.
Nothing is unpickled. The connecting side (the predecessor) sends only after it was challenged:

    successor    challenge {protocol, nonce}
    predecessor  hello     {protocol, nonce, machine, incarnation, term, epoch, revision, proof}
    successor    welcome   {machine, incarnation, proof}          or refused {code, reason}

Both proofs are HMAC-SHA256 under the job's relay key over both nonces and all other fields. Neither a replayed hello
nor a stranger on a reused address is accepted. The connection is authenticated, not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from rljob_runtime.relay.fencing import FencingToken
from rljob_runtime.relay.manifest import checksum
from rljob_runtime.relay.network.transport import Connection
from rljob_runtime.relay.slot import PAGE, Slot

PROTOCOL = 1
MAX_HEADER_BYTES = 64 << 10
MAX_MANIFEST_BYTES = 64 << 20
MAX_HELLO_BYTES = 4096
"""Limit before the caller is authenticated."""

_MAGIC = b"RLJ1"
_PREFIX = struct.Struct("!4sIQ")
_PIECE_BYTES = 1 << 20
"""Received bytes are checksummed in pieces of this size, while they are in the processor's cache."""

Header = dict[str, Any]


class WireError(Exception):
    """The connection cannot continue: it broke, timed out, or the peer sent an invalid frame."""


class RefusedByPeer(WireError):
    """The peer refused. `code` is one of the constants below; `args[0]` is the reason."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


NOT_AUTHENTIC = "NotAuthentic"
PROTOCOL_VERSION = "ProtocolVersion"
STALE = "Stale"
NOT_PREDECESSOR = "NotPredecessor"
BUSY = "Busy"
VERSION_REUSED = "VersionReused"
FULL = "Full"
CORRUPT = "Corrupt"
TRANSIENT = frozenset({BUSY, FULL, CORRUPT})
"""Refusals that a later retry may overcome."""


@dataclass(frozen=True)
class Identity:
    """Identity of a peer: a machine (or the trainer) in one incarnation."""

    machine: str
    incarnation: int


class Channel:
    """Frames over one connection. Every operation ends if nothing moves for the connection's time (WireError)."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, header: Header, payload: bytes = b"") -> None:
        """Send one frame."""
        try:
            self.connection.send(_encode(header, len(payload)) + payload)
        except OSError as error:
            raise WireError(f"sending {header['type']}: {error}") from error

    def send_chunk(self, slot: Slot, index: int) -> int:
        """Send one chunk from the shared memory without a copy through this process; return its size.

        The memory may still be read after the return: hold the slot until the peer has answered.
        """
        start, nbytes = slot.manifest.chunk_range(index)
        header = _encode({"type": "chunk", "version": slot.manifest.version, "index": index}, nbytes)
        try:
            self.connection.send(header, more=True)
            sent = self.connection.send_memory(slot.file, PAGE + start, nbytes)
        except OSError as error:
            raise WireError(f"sending chunk {index}: {error}") from error
        if sent != nbytes:
            raise WireError(f"sending chunk {index}: the slot ended after {sent} of {nbytes} bytes")
        return nbytes

    def receive(self, max_header: int = MAX_HEADER_BYTES) -> tuple[Header, int]:
        """Return the next frame's header and its payload's length; the payload must be received next."""
        magic, header_bytes, payload_bytes = _PREFIX.unpack(self._exactly(_PREFIX.size))
        if magic != _MAGIC:
            raise WireError(f"not a relay's frame: {magic!r}")
        if header_bytes > max_header:
            raise WireError(f"a header of {header_bytes} bytes; {max_header} are allowed")
        try:
            header = json.loads(self._exactly(header_bytes))
        except (ValueError, RecursionError) as error:
            raise WireError(f"a header that is not JSON, or nested too deeply: {error}") from None
        if not isinstance(header, dict) or not isinstance(header.get("type"), str):
            raise WireError("a header without a type")
        return header, payload_bytes

    def expect(self, *types: str, max_header: int = MAX_HEADER_BYTES) -> Header:
        """Return the next frame, which must be one of `types` without payload. Raises RefusedByPeer for a `refused`."""
        header, payload_bytes = self.receive(max_header)
        if header["type"] == "refused":
            raise RefusedByPeer(str(header.get("code")), str(header.get("reason")))
        if header["type"] not in types or payload_bytes:
            raise WireError(f"{header['type']} instead of {' or '.join(types)}")
        return header

    def payload(self, nbytes: int, limit: int) -> bytes:
        """Receive a payload as bytes."""
        if nbytes > limit:
            raise WireError(f"a payload of {nbytes} bytes; {limit} are allowed")
        return bytes(self._exactly(nbytes))

    def payload_into(self, target: memoryview) -> int:
        """Receive the payload directly into `target`; return its CRC-32."""
        crc = 0
        for start in range(0, len(target), _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            self._fill(piece)
            crc = checksum(piece, crc)
        return crc

    def refuse(self, code: str, reason: str) -> None:
        """Send a refusal, as far as the connection still allows."""
        self.send({"type": "refused", "code": code, "reason": reason})

    def check(self) -> None:
        """Raise WireError if the peer has ended the connection; does not wait."""
        if self.connection.ended():
            raise WireError("the peer closed the connection")

    def interrupt(self) -> None:
        """End the connection from another thread: the owner's pending operation fails immediately."""
        self.connection.interrupt()

    def close(self) -> None:
        """Close the connection; only its owning thread may."""
        self.connection.close()

    def _exactly(self, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        self._fill(memoryview(data))
        return data

    def _fill(self, target: memoryview) -> None:
        try:
            self.connection.receive_into(target)
        except OSError as error:
            raise WireError(f"receiving: {error}") from error


@contextmanager
def deadline(channel: Channel, seconds: float) -> Iterator[None]:
    """End the connection if the work inside takes longer, even if bytes keep arriving."""
    timer = threading.Timer(seconds, channel.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# --- the handshake ---------------------------------------------------------------------------------------------------


def introduce(channel: Channel, key: bytes, identity: Identity, token: FencingToken) -> Identity:
    """Perform the predecessor's side of the handshake; return the identity of the successor.

    Raises RefusedByPeer with the successor's reason, or with NOT_AUTHENTIC if the successor's proof is wrong.
    """
    challenge = channel.expect("challenge")
    if challenge.get("protocol") != PROTOCOL:
        raise RefusedByPeer(PROTOCOL_VERSION, f"it speaks protocol {challenge.get('protocol')}, not {PROTOCOL}")
    hello: Header = {"nonce": secrets.token_hex(16), "protocol": PROTOCOL, **asdict(identity), **asdict(token)}
    nonces = [challenge.get("nonce"), hello["nonce"]]
    channel.send({"type": "hello", **hello, "proof": _proof(key, "predecessor", nonces, hello)})
    welcome = channel.expect("welcome")
    answer = {name: welcome.get(name) for name in ("machine", "incarnation")}
    if not _same(_proof(key, "successor", nonces, answer), welcome.get("proof")):
        raise RefusedByPeer(NOT_AUTHENTIC, "the successor does not hold this job's relay key")
    return Identity(str(answer["machine"]), int(str(answer["incarnation"])))  # The proof covers these values.


class Caller:
    """Successor's side of the handshake, in two steps, so that the answer can depend on the caller."""

    def __init__(self, channel: Channel, key: bytes) -> None:
        """Send the challenge and receive the hello.

        Raises RefusedByPeer (after refusing the peer) if it is not authentic.
        """
        self._channel, self._key = channel, key
        nonce = secrets.token_hex(16)
        channel.send({"type": "challenge", "protocol": PROTOCOL, "nonce": nonce})
        hello = channel.expect("hello", max_header=MAX_HELLO_BYTES)
        proof = hello.pop("proof", None)
        hello.pop("type")
        self._nonces = [nonce, hello.get("nonce")]
        if hello.get("protocol") != PROTOCOL:
            self.refuse(PROTOCOL_VERSION, f"protocol {hello.get('protocol')}; this relay speaks {PROTOCOL}")
        if not _same(_proof(key, "predecessor", self._nonces, hello), proof):
            self.refuse(NOT_AUTHENTIC, "the proof is wrong: not this job's relay key")
        try:
            self.identity = Identity(str(hello["machine"]), int(hello["incarnation"]))
            self.token = FencingToken(int(hello["term"]), int(hello["epoch"]), int(hello["revision"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError(f"an incomplete hello: {error!r}") from None

    def welcome(self, identity: Identity) -> None:
        """Accept the caller; the frames that follow are the predecessor's."""
        answer = asdict(identity)
        proof = _proof(self._key, "successor", self._nonces, answer)
        self._channel.send({"type": "welcome", **answer, "proof": proof})

    def refuse(self, code: str, reason: str) -> None:
        """Refuse the caller, and raise the refusal here too."""
        self._channel.refuse(code, reason)
        raise RefusedByPeer(code, reason)


def _encode(header: Header, payload_bytes: int) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return _PREFIX.pack(_MAGIC, len(text), payload_bytes) + text


def _proof(key: bytes, side: str, nonces: list[Any], said: Header) -> str:
    text = json.dumps([side, nonces, said], sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _same(expected: str, given: object) -> bool:
    # A proof is ASCII; other strings may not even be encodable.
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(expected.encode(), given.encode())
