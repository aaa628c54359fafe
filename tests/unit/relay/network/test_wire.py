"""Frames, the handshake, and whose commands are followed."""

from __future__ import annotations

import errno
import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols import Chain, RelayMember
from rljob_runtime.relay.fencing import PUBLISHER, FencingToken, predecessor
from rljob_runtime.relay.manifest import checksum
from rljob_runtime.relay.network import wire
from rljob_runtime.relay.network.tcp import TCP, TcpConnection
from rljob_runtime.relay.network.wire import Caller, Channel, Identity, RefusedByPeer, WireError, introduce
from rljob_runtime.relay.segment import SegmentWriter
from tests.support.relay import KEY, commit

tokens = st.builds(FencingToken, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


@pytest.fixture
def pair():
    channels = _channels()
    yield channels
    for channel in channels:
        channel.close()


@given(held=tokens, offered=tokens)
def test_exactly_the_lower_is_refused_and_the_higher_adopted(held, offered):
    refusal = held.refusal(offered)
    assert (refusal is None) == (offered.term >= held.term and offered.chain >= held.chain)
    raised = held.raised(offered)
    assert raised.refusal(held) is not None or raised == held
    assert raised.term == max(held.term, offered.term)
    assert raised.chain == max(held.chain, offered.chain)


@given(count=st.integers(0, 5))
def test_the_predecessor_is_the_member_before(count):
    names = [f"rollout-{i}" for i in range(count)]
    chain = Chain(1, 0, tuple(RelayMember(name, 0, "h", 1) for name in names))
    assert [predecessor(chain, name) for name in names] == [PUBLISHER, *names][:count]
    assert predecessor(chain, "stranger") is None
    assert predecessor(chain, PUBLISHER) is None


@given(
    header=st.dictionaries(st.text(max_size=9), st.integers() | st.text(max_size=9), max_size=4),
    payload=st.binary(max_size=3000),
)
def test_a_frame_arrives_as_it_was_sent(header, payload):
    left, right = _channels()
    left.send({**header, "type": "any"}, payload)
    received, nbytes = right.receive()
    assert received == {**header, "type": "any"}
    assert right.payload(nbytes, 3000) == payload
    left.close()
    right.close()


def _channels() -> tuple[Channel, Channel]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        return Channel(TcpConnection(left, 30)), Channel(TcpConnection(listener.accept()[0], 30))


def test_a_chunk_goes_from_memory_to_memory_with_its_checksum(memory, pair):
    writer = SegmentWriter.open(memory / "s")
    manifest = commit(writer, 1, nbytes=3_000_000, chunk_bytes=1_400_000)
    left, right = pair
    with ThreadPoolExecutor(1) as pool:
        for index in range(manifest.chunks):
            sending = pool.submit(left.send_chunk, writer.current, index)
            header, nbytes = right.receive()
            assert header == {"type": "chunk", "version": 1, "index": index}
            target = memoryview(bytearray(nbytes))
            assert right.payload_into(target) == manifest.checksums[index] == checksum(target)
            assert sending.result() == nbytes
            assert target == writer.current.chunk(index)


BAD_BYTES = {
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n", "not a relay's frame"),
    "an endless header": (struct.pack("!4sIQ", b"RLJ1", 2**31, 0), "a header of 2147483648 bytes"),
    "no JSON": (struct.pack("!4sIQ", b"RLJ1", 3, 0) + b"\xff{}", "not JSON"),
    "no object": (struct.pack("!4sIQ", b"RLJ1", 2, 0) + b"[]", "without a type"),
    "no type": (struct.pack("!4sIQ", b"RLJ1", 2, 0) + b"{}", "without a type"),
    "a pickle": (struct.pack("!4sIQ", b"RLJ1", 4, 0) + b"\x80\x04N.", "not JSON"),
}


@pytest.mark.parametrize("case", BAD_BYTES)
def test_bytes_that_are_no_frame_are_named(pair, case):
    left, right = pair
    data, message = BAD_BYTES[case]
    left.connection.send(data)
    with pytest.raises(WireError, match=message):
        right.receive()


def test_a_payload_over_the_limit_is_not_read(pair):
    left, right = pair
    left.send({"type": "offer"}, bytes(100))
    _, nbytes = right.receive()
    with pytest.raises(WireError, match="100 bytes; 99 are allowed"):
        right.payload(nbytes, 99)


def test_silence_ends_in_an_error(pair):
    left, _ = pair
    left.connection.socket.settimeout(0.05)
    with pytest.raises(WireError, match="timed out"):
        left.receive()


def test_an_interrupt_wakes_a_reader_in_another_thread(pair):
    left, _ = pair
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(left.receive)
        threading.Timer(0.05, left.interrupt).start()
        with pytest.raises(WireError):
            reading.result(30)


def _handshake(pair, key=KEY, their_key=KEY):
    left, right = pair
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(introduce, left, key, Identity("rollout-0", 3), FencingToken(1, 2, 3))
        caller = Caller(right, their_key)
        caller.welcome(Identity("rollout-1", 4))
        return caller, calling.result(30)


def test_both_sides_learn_who_the_other_is(pair):
    caller, answered = _handshake(pair)
    assert caller.identity == Identity("rollout-0", 3)
    assert caller.token == FencingToken(1, 2, 3)
    assert answered == Identity("rollout-1", 4)


def test_a_caller_with_another_key_is_refused(pair):
    with pytest.raises(RefusedByPeer) as refused:
        _handshake(pair, key=b"another")
    assert refused.value.code == wire.NOT_AUTHENTIC


def test_a_successor_with_another_key_is_not_trusted(pair):
    left, right = pair
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(introduce, left, KEY, Identity("rollout-0", 3), FencingToken())
        right.send({"type": "challenge", "protocol": wire.PROTOCOL, "nonce": "n"})
        right.expect("hello")
        right.send({"type": "welcome", "machine": "rollout-1", "incarnation": 0, "proof": "0" * 64})
        with pytest.raises(RefusedByPeer) as refused:
            calling.result(30)
    assert refused.value.code == wire.NOT_AUTHENTIC


def test_another_protocol_version_is_refused_on_both_sides(pair, monkeypatch):
    left, right = pair
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(introduce, left, KEY, Identity("rollout-0", 3), FencingToken())
        right.send({"type": "challenge", "protocol": 99, "nonce": "n"})
        with pytest.raises(RefusedByPeer, match="99, not 1"):
            calling.result(30)


@pytest.mark.parametrize("changed", ["machine", "incarnation", "term", "epoch", "revision", "nonce"])
def test_a_hello_changed_on_the_way_or_replayed_is_refused(changed):
    """A hello that was recorded cannot be used again, not even with one field of it changed."""
    recorded = _hello_of_a_real_caller()
    left, right = _channels()
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(Caller, right, KEY)
        left.expect("challenge")
        left.send({**recorded, changed: 77})
        with pytest.raises(RefusedByPeer) as refused:
            answering.result(30)
        assert refused.value.code == wire.NOT_AUTHENTIC
    with pytest.raises(RefusedByPeer):
        left.expect("welcome")
    left.close()
    right.close()


def _hello_of_a_real_caller() -> dict:
    left, right = _channels()
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(introduce, left, KEY, Identity("rollout-0", 3), FencingToken(1, 2, 3))
        right.send({"type": "challenge", "protocol": wire.PROTOCOL, "nonce": "the first nonce"})
        hello = right.expect("hello")
        right.close()
        with pytest.raises(WireError):
            calling.result(30)
    left.close()
    assert KEY.decode() not in json.dumps(hello)
    return hello


# --- whether a machine is still there --------------------------------------------------------------------------------


def _listening() -> tuple[socket.socket, tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, listener.getsockname()


def test_a_machine_without_a_listener_answers():
    listener, address = _listening()
    assert TCP.reaches(*address, 5)
    listener.close()
    assert TCP.reaches(*address, 5)


ENDS = {
    "nothing comes": (TimeoutError("timed out"), False),
    "no way to the machine": (OSError(errno.EHOSTUNREACH, "No route to host"), False),
    "no way to its network": (OSError(errno.ENETUNREACH, "Network is unreachable"), False),
    "the kernel gave up": (OSError(errno.ETIMEDOUT, "Connection timed out"), False),
    "its process ended meanwhile": (OSError(errno.ECONNRESET, "Connection reset by peer"), True),
}


@pytest.mark.parametrize("case", ENDS)
def test_silence_is_no_answer_and_a_refusal_is_one(monkeypatch, case):
    error, reached = ENDS[case]

    def fail(*_):
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    assert TCP.reaches("10.0.0.9", 1, 0.01) is reached


def test_one_lost_packet_makes_no_witness(monkeypatch):
    listener, address = _listening()
    connect, tried = socket.create_connection, []

    def first_is_lost(*arguments):
        tried.append(arguments)
        if len(tried) == 1:
            raise TimeoutError("timed out")
        return connect(*arguments)

    monkeypatch.setattr(socket, "create_connection", first_is_lost)
    assert TCP.reaches(*address, 5)
    listener.close()


def test_trouble_of_ones_own_says_nothing_about_the_other(monkeypatch):
    def fail(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(OSError, match="Too many"):
        TCP.reaches("10.0.0.9", 1, 0.01)
