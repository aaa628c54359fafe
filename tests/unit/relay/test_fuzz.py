"""Whatever a peer sends: each end of a connection says what is wrong with it, and nothing else is ever raised."""

from __future__ import annotations

import hmac
import json
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_runtime.protocols import Chain
from rljob_runtime.relay.network import wire
from rljob_runtime.relay.network.service_thread import Service, ServiceEnded
from rljob_runtime.relay.network.wire import Caller, Channel, Identity, WireError, introduce
from rljob_runtime.relay.receiver import _Reception
from rljob_runtime.relay.segment import SegmentWriter
from rljob_runtime.relay.sender import _indices
from rljob_runtime.relay.slot import SlotFile
from rljob_runtime.relay.version_store import VersionStore
from tests.support.examples import examples
from tests.support.relay import FIRST, KEY, sealed

BUDGET = settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONGEST = 1 << 20
"""No reader of a few kilobytes may take more than this."""

values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text()
    | st.sampled_from(["\ud800", "", "1", "trainer"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
TYPES = ("challenge", "hello", "welcome", "refused", "offer", "chunk", "ping", "pong", "wanted", "whole", "unwanted")
KEYS = ("protocol", "nonce", "proof", "machine", "incarnation", "term", "epoch", "revision", "version", "index")
MANIFEST, DATA = sealed(3, nbytes=3000)


class Stream:
    """A connection whose other end has said all that it will ever say."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self.taken = 0
        self.answers = b""

    def receive_into(self, target: memoryview) -> None:
        piece = self._said[self.taken : self.taken + len(target)]
        self.taken += len(piece)
        if len(piece) < len(target):
            raise ConnectionResetError("the peer closed the connection")
        target[:] = piece

    def send(self, data: bytes, more: bool = False) -> None:
        self.answers += data

    def send_memory(self, file: SlotFile, start: int, nbytes: int) -> int:
        return nbytes

    def ended(self) -> bool:
        return False

    def interrupt(self) -> None:
        return

    def close(self) -> None:
        return


def frame(header: bytes, payload: bytes = b"", *, magic: bytes = b"RLJ1", claimed: int | None = None) -> bytes:
    return struct.pack("!4sIQ", magic, len(header), len(payload) if claimed is None else claimed) + header + payload


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


headers = st.builds(
    lambda type_, rest: {**rest, "type": type_},
    st.sampled_from(TYPES) | values,
    st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), values, max_size=7),
)
odd_headers = (
    headers.map(encoded)
    | values.map(encoded)
    | st.binary(max_size=200)
    | st.integers(1, 30_000).map(lambda depth: b"[" * depth)
    | st.integers(1, 60_000).map(lambda digits: b'{"type":"hello","incarnation":' + b"9" * digits + b"}")
)
frames = st.builds(
    lambda header, payload, claimed: frame(header, payload, claimed=claimed),
    odd_headers,
    st.binary(max_size=64),
    st.none() | st.integers(0, 2**64 - 1),
)
streams = st.lists(frames | st.binary(max_size=64), max_size=5).map(b"".join)


@BUDGET
@given(streams)
def test_reading_frames_raises_one_kind_of_error(said: bytes) -> None:
    channel = Channel(Stream(said))

    def read() -> None:
        while True:
            _, payload = channel.receive()
            channel.payload(payload, LONGEST)

    with pytest.raises(WireError):
        read()


@BUDGET
@given(streams)
def test_a_stranger_that_calls_is_answered_or_cut(said: bytes) -> None:
    with pytest.raises(WireError):
        Caller(Channel(Stream(said)), KEY)


@BUDGET
@given(streams)
def test_a_stranger_that_is_called_is_no_successor(said: bytes) -> None:
    with pytest.raises(WireError):
        introduce(Channel(Stream(said)), KEY, Identity("trainer", 0), FIRST)


@BUDGET
@given(st.fixed_dictionaries({}, optional={key: values for key in KEYS if key != "proof"}), st.booleans())
def test_a_caller_with_the_key_says_who_it_is_or_is_cut(said: dict[str, Any], speaks_it: bool) -> None:
    """Another pod of the job, taken over by an attacker."""
    hello = {**said, "protocol": wire.PROTOCOL} if speaks_it else said
    stream = Stream(b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire.secrets, "token_hex", lambda size: "0" * 2 * size)
        proof = _proof("predecessor", ["0" * 32, hello.get("nonce")], hello)
        stream = Stream(frame(encoded({**hello, "type": "hello", "proof": proof})))
        try:
            caller = Caller(Channel(stream), KEY)
        except WireError:
            return
    assert isinstance(caller.identity.machine, str)
    assert all(isinstance(number, int) for number in (caller.identity.incarnation, *vars(caller.token).values()))


def _proof(side: str, nonces: list[Any], said: dict[str, Any]) -> str:
    text = json.dumps([side, nonces, said], sort_keys=True, separators=(",", ":"))
    return hmac.new(KEY, text.encode(), "sha256").hexdigest()


@BUDGET
@given(values | st.lists(st.lists(values, max_size=3), max_size=3), st.integers(0, 5))
def test_what_a_successor_wants_is_of_this_version(ranges: Any, chunks: int) -> None:
    try:
        found = list(_indices({"ranges": ranges}, chunks))
    except WireError:
        return
    assert set(found) <= set(range(chunks))


# --- after the handshake: a neighbour that has been taken over --------------------------------------------------------


@contextmanager
def store() -> Iterator[VersionStore]:
    folder = Path(tempfile.mkdtemp(prefix="test-relay-fuzz-"))
    found = VersionStore(SegmentWriter.open(folder / "rollout-0"), patience=1.0)
    try:
        yield found
    finally:
        found.close()
        shutil.rmtree(folder)


def edited(fields: dict[str, Any], drop: list[str]) -> bytes:
    manifest = {**json.loads(MANIFEST.to_json()), **fields}
    return json.dumps({key: value for key, value in manifest.items() if key not in drop}).encode()


manifests = st.builds(
    edited,
    st.fixed_dictionaries(
        {},
        optional={
            "version": st.integers(-1, 5) | values,
            "total_bytes": st.integers(0, 10_000) | st.sampled_from([2**40, 2**63, 10**30]) | values,
            "chunk_bytes": st.integers(0, 5000) | values,
            "checksums": st.lists(st.integers(0, 2**32), max_size=4) | values,
            "tensors": values,
        },
    ),
    st.lists(st.sampled_from(["version", "tensors", "total_bytes", "chunk_bytes", "checksums"]), max_size=2),
)
offers = (st.just(MANIFEST.to_json()) | manifests | st.binary(max_size=100)).map(
    lambda text: frame(b'{"type":"offer"}', text)
)
chunks = st.builds(
    lambda version, index, payload: frame(encoded({"type": "chunk", "version": version, "index": index}), payload),
    st.just(3) | values,
    st.integers(-1, 4) | values,
    st.integers(0, 3).map(lambda index: DATA[index * 1024 : (index + 1) * 1024]) | st.binary(max_size=64),
)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(offers | chunks | frames | st.just(frame(b'{"type":"ping"}')), max_size=8).map(b"".join))
def test_no_neighbour_causes_an_unexpected_error_in_a_relay(said: bytes) -> None:
    with store() as found:
        reception = _Reception(Channel(Stream(said)), Identity("rollout-9", 0), found)
        reception.run()
        assert reception.ended.is_set()
        assert found.counters.unexpected_errors == 0
        complete = found.complete
        assert complete is None or bytes(complete.buffer()) == DATA or complete.manifest != MANIFEST


# --- a thread that ends -----------------------------------------------------------------------------------------------


def test_the_end_of_a_service_is_said_at_the_next_call() -> None:
    def work() -> None:
        raise ZeroDivisionError("why")

    service = Service("works", work)
    service.check()
    service.start()
    service.join()
    with pytest.raises(ServiceEnded, match=r"thread works has ended: ZeroDivisionError\('why'\)") as found:
        service.check()
    assert isinstance(found.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("part", ["_receiver", "_sender"])
async def test_a_relay_that_serves_no_more_counts_as_lost(relays, monkeypatch, part) -> None:
    relay = relays("rollout-0")
    await relay.status(1)
    monkeypatch.setattr(getattr(relay, part)._service, "_failure", MemoryError())
    with pytest.raises(ServiceEnded):
        await relay.status(1)


def test_a_publisher_that_sends_no_more_ships_nothing(publisher, monkeypatch) -> None:
    monkeypatch.setattr(publisher._sender._service, "_failure", MemoryError())
    with pytest.raises(ServiceEnded):
        publisher.ship(1, Chain(1, 0, ()))
