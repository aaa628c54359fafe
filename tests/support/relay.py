"""Versions with known content, relays in threads, and a predecessor played by hand, for the relay's tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from rljob_runtime.protocols import Chain, RelayMember
from rljob_runtime.relay.fencing import FencingToken
from rljob_runtime.relay.manifest import Manifest, checksum, layout
from rljob_runtime.relay.network.tcp import TCP
from rljob_runtime.relay.network.wire import Channel, Header, Identity, introduce
from rljob_runtime.relay.relay import Relay
from rljob_runtime.relay.segment import Segment, SegmentWriter
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.slot import Slot
from rljob_runtime.relay.subprocess import RelayProcess


def content(manifest: Manifest, salt: int = 0) -> bytes:
    """The bytes that every test gives `manifest.version`: no two versions agree in any chunk."""
    return random.Random(f"{manifest.version}/{salt}").randbytes(manifest.total_bytes)


def fill(slot: Slot, data: bytes) -> None:
    """Write `data` into a draft and seal it, as the trainer does."""
    slot.buffer()[:] = data
    slot.seal([checksum(slot.chunk(index)) for index in range(slot.manifest.chunks)])


def commit(
    writer: SegmentWriter, version: int, nbytes: int = 10_000, chunk_bytes: int = 1024, salt: int = 0
) -> Manifest:
    """Commit a version with its known content."""
    draft = writer.begin(layout(version, [("w", "uint8", (nbytes,))], chunk_bytes))
    fill(draft, content(draft.manifest, salt))
    writer.commit(draft)
    return draft.manifest


def sealed(version: int, nbytes: int = 10_000, chunk_bytes: int = 1024, salt: int = 0) -> tuple[Manifest, bytes]:
    """A manifest as it travels, and its content."""
    manifest = layout(version, [("w", "uint8", (nbytes,))], chunk_bytes)
    data = content(manifest, salt)
    return manifest.seal(checksum(data[i : i + chunk_bytes]) for i in range(0, nbytes, chunk_bytes)), data


def assert_whole(segment: Path, version: int, salt: int = 0) -> None:
    """The segment's current version is `version`, bit for bit."""
    manifest, buffer = Segment.open(segment).current()
    assert manifest.version == version
    assert bytes(buffer) == content(manifest, salt)


# --- relays in threads -----------------------------------------------------------------------------------------------

KEY = b"an-authentic-relay-key-of-this-job"
FIRST = FencingToken(1, 1, 0)
"""Of the first coordinator, in the first chain."""
SETTINGS = RelaySettings(chunk_bytes=1024, heartbeat_seconds=2.0, rebuild_timeout_seconds=10.0)
"""Patient, since a predecessor played by hand sends no heartbeats, and a busy machine may stop it for a while."""


def member(relay: Relay) -> RelayMember:
    """How the others find `relay`."""
    host, port = relay.address
    return RelayMember(relay.machine, relay.identity.incarnation, host, port)


def chain_of(relays: Sequence[Relay], epoch: int = 1, revision: int = 0) -> Chain:
    """The chain of these, in this order."""
    return Chain(epoch, revision, tuple(member(relay) for relay in relays))


async def join_all(relays: Sequence[Relay], epoch: int = 1, revision: int = 0, term: int = 1) -> Chain:
    """Give every one the chain of all."""
    chain = chain_of(relays, epoch, revision)
    for relay in relays:
        await relay.join(term, chain)
    return chain


def whole(relay: Relay) -> int | None:
    """The version that `relay` holds whole, by its segment."""
    return Segment.open(relay._store._writer.folder).version()


class Predecessor:
    """A predecessor played by hand: speaks the protocol frame by frame."""

    def __init__(
        self, relay: Relay | RelayProcess, name: str = "trainer", token: FencingToken = FIRST, key: bytes = KEY
    ) -> None:
        address = relay.address if isinstance(relay, Relay) else (relay.member.host, relay.member.port)
        self.channel = Channel(TCP.connect(*address, 30, 30))
        self.answer = introduce(self.channel, key, Identity(name, 0), token)

    def offer(self, manifest: Manifest) -> Header:
        """Offer a version; returns the answer."""
        self.channel.send({"type": "offer"}, manifest.to_json())
        return self.channel.expect("wanted", "whole", "unwanted")

    def chunk(self, manifest: Manifest, index: int, data: bytes) -> None:
        """Send one chunk of the version whose content is `data`."""
        start, nbytes = manifest.chunk_range(index)
        header = {"type": "chunk", "version": manifest.version, "index": index}
        self.channel.send(header, data[start : start + nbytes])

    def hear(self) -> Header:
        """The answer after the last wanted chunk."""
        return self.channel.expect("wanted", "whole", "unwanted")

    def settle(self) -> None:
        """Return when everything sent was taken."""
        self.channel.send({"type": "ping"})
        self.channel.expect("pong")

    def close(self) -> None:
        """Break the connection."""
        self.channel.close()
