"""The receiving side as it ends: a caller in its last moment must not be left with a connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rljob_runtime.relay.config import RelayConfig
from rljob_runtime.relay.network import wire
from rljob_runtime.relay.network.tcp import TCP
from rljob_runtime.relay.network.wire import Channel, Identity, RefusedByPeer, WireError, introduce
from rljob_runtime.relay.receiver import Admission, Receiver
from rljob_runtime.relay.segment import SegmentWriter
from rljob_runtime.relay.version_store import VersionStore
from tests.support.relay import FIRST, KEY, SETTINGS

TRAINER = Identity("trainer", 0)


@contextmanager
def listening(memory: Path, admit: Admission) -> Iterator[Receiver]:
    store = VersionStore(SegmentWriter.open(memory / "rollout-0"), patience=10.0)
    config = RelayConfig("rollout-0", 0, memory / "rollout-0", KEY, SETTINGS, "127.0.0.1")
    receiver = Receiver(store, config, admit)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.close()
        store.close()


class Turn:
    """A lock that tells when `thread` comes for it."""

    def __init__(self, thread: threading.Thread, comes: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._thread = thread
        self._comes = comes

    def __enter__(self) -> None:
        if threading.current_thread() is self._thread:
            self._comes()
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def test_a_caller_that_is_let_in_while_the_relay_ends_is_ended_too(memory):
    """It was admitted before the end began, and is the present connection after the end has looked for one."""
    looked = threading.Event()

    def end() -> None:
        receiver.close()
        looked.set()

    def admit(caller, token):
        closing.start()
        assert looked.wait(20), "the end neither waits for this caller nor passes it by"
        return None

    with listening(memory, admit) as receiver:
        closing = threading.Thread(target=end)
        receiver._turn = Turn(closing, looked.set)
        channel = Channel(TCP.connect(*receiver.address, 20, 20))
        assert introduce(channel, KEY, TRAINER, FIRST) == Identity("rollout-0", 0)
        closing.join()
        assert receiver.predecessor is None
        with pytest.raises(WireError, match="closed the connection"):
            channel.receive()
        channel.close()


def test_a_caller_in_the_handshake_of_an_ended_relay_is_refused(memory):
    admitted = []
    with listening(memory, lambda caller, token: admitted.append(caller)) as receiver:

        class Slow(Channel):
            """Answers the challenge when the relay has ended."""

            def expect(self, *types, **limits):
                header = super().expect(*types, **limits)
                receiver.close()
                return header

        channel = Slow(TCP.connect(*receiver.address, 20, 20))
        with pytest.raises(RefusedByPeer, match="ending") as refused:
            introduce(channel, KEY, TRAINER, FIRST)
        assert refused.value.code == wire.BUSY
        channel.close()
    assert not admitted
