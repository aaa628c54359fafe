"""A stranger that reaches a relay's port, or is reached by a relay, stops no weights before it has proven who it is."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import torch

from rljob_runtime.protocols import Chain, RelayMember
from rljob_runtime.relay.network import wire
from rljob_runtime.relay.network.wire import WireError
from rljob_runtime.relay.receiver import MAX_CALLERS, MAX_CALLERS_OF_A_HOST
from tests.support.relay import SETTINGS, Predecessor, join_all, whole
from tests.support.waiting import until

WEIGHTS = {"w": torch.ones(1000)}
Answer = Callable[[socket.socket], None]


def frame(header: bytes) -> bytes:
    return struct.pack("!4sIQ", b"RLJ1", len(header), 0) + header


def speaks_http(peer: socket.socket) -> None:
    peer.sendall(b"GET / HTTP/1.1\r\n\r\n")


def nests_deeply(peer: socket.socket) -> None:
    peer.sendall(frame(b"[" * 30_000))


def proves_with_half_a_character(peer: socket.socket) -> None:
    peer.sendall(frame(json.dumps({"type": "challenge", "protocol": wire.PROTOCOL, "nonce": "n"}).encode()))
    peer.recv(4096)
    peer.sendall(frame(b'{"type":"welcome","machine":"rollout-0","incarnation":0,"proof":"\\ud800"}'))


def says_a_byte_now_and_then(peer: socket.socket) -> None:
    for byte in frame(b" " * 4000):
        peer.sendall(bytes([byte]))
        time.sleep(0.5)


@contextmanager
def stranger(answer: Answer) -> Iterator[RelayMember]:
    """Another process at the address of a successor."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):  # it ends with the test
            while True:
                peer, _ = server.accept()
                threading.Thread(target=talk, args=(peer,), daemon=True).start()

    def talk(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            answer(peer)
            peer.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield RelayMember("rollout-0", 0, *server.getsockname()[:2])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.mark.parametrize("answer", [speaks_http, nests_deeply, proves_with_half_a_character])
async def test_a_stranger_at_the_successors_address_stops_no_later_chain(relays, publisher, answer):
    with stranger(answer) as bad:
        publisher.publish(1, WEIGHTS)
        publisher.ship(1, Chain(1, 0, (bad,)))
        await until(lambda: publisher.counters.connections_lost >= 2 or publisher.link[0] == "Refused")
        relay = relays("rollout-0")
        publisher.ship(1, await join_all([relay], epoch=2))
        await until(lambda: whole(relay) == 1)
    assert publisher.counters.unexpected_errors == 0


async def test_a_stranger_that_hardly_speaks_is_given_up(relays, publisher, monkeypatch):
    """Each byte of its own comes in time; the handshake has a bound for all of them."""
    monkeypatch.setattr(type(SETTINGS), "silence_seconds", property(lambda self: 1.0))
    with stranger(says_a_byte_now_and_then) as bad:
        publisher.ship(1, Chain(1, 0, (bad,)))
        publisher.publish(1, WEIGHTS)
        await until(lambda: publisher.counters.connections_lost >= 1, 20)


async def test_slow_callers_keep_no_other_out(relays, monkeypatch):
    """They have few of the connections, and none for long."""
    monkeypatch.setattr(type(SETTINGS), "silence_seconds", property(lambda self: 2.0))
    relay = relays("rollout-0")
    await join_all([relay])
    drips = [socket.create_connection(relay.address, 5, ("127.0.0.2", 0)) for _ in range(MAX_CALLERS)]
    try:
        turned_away = MAX_CALLERS - MAX_CALLERS_OF_A_HOST
        await until(lambda: relay.counters.connections_refused == turned_away)
        Predecessor(relay).close()
        for byte in frame(b" " * 4000)[:100]:
            for drip in drips:
                with suppress(OSError):
                    drip.sendall(bytes([byte]))
            if relay.counters.connections_refused == MAX_CALLERS:
                break
            await asyncio.sleep(0.2)
        assert relay.counters.connections_refused == MAX_CALLERS, "a handshake without end"
    finally:
        for drip in drips:
            drip.close()


async def test_a_relay_without_threads_left_serves_the_next_caller(relays, monkeypatch):
    """As at a limit of processes: the first caller gets none."""
    relay, start, refused = relays("rollout-0"), threading.Thread.start, []

    def limited(self: threading.Thread) -> None:
        if getattr(self._target, "__name__", "") == "_serve" and not refused:
            refused.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    await join_all([relay])
    with pytest.raises(WireError):
        Predecessor(relay)
    Predecessor(relay).close()
    assert relay.counters.connections_refused == 1


async def test_an_unexpected_error_ends_one_connection_alone(relays, publisher, monkeypatch):
    relay = relays("rollout-0")
    chain = await join_all([relay])
    proof, failed = wire._proof, []

    def fails_twice(*args: object) -> str:
        if len(failed) < 2:
            failed.append(args)
            raise ZeroDivisionError
        return proof(*args)

    monkeypatch.setattr(wire, "_proof", fails_twice)
    publisher.publish(1, WEIGHTS)
    publisher.ship(1, chain)
    await until(lambda: whole(relay) == 1)
    assert relay.counters.unexpected_errors + publisher.counters.unexpected_errors == 2
