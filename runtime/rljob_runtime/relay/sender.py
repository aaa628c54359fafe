"""Sender: a thread that feeds one successor with the versions of this process.

It connects, authenticates and offers the version in transfer, or the complete one. The successor answers which chunks
it wants. Each is sent as soon as it is verified here: while chunk i arrives from the predecessor, chunk i - 1 leaves.
After a broken connection it reconnects and sends the chunks that the successor lacks. A newer version interrupts an
older one between two chunks.

Attempts are bounded: after `rebuild_timeout_seconds` without success the successor counts as lost, until a new chain or
a new version is a reason to try again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from rljob_runtime.protocols import RelayMember
from rljob_runtime.relay.fencing import FencingToken
from rljob_runtime.relay.network import wire
from rljob_runtime.relay.network.service_thread import Service
from rljob_runtime.relay.network.tcp import TCP
from rljob_runtime.relay.network.transport import Transport
from rljob_runtime.relay.network.wire import Channel, Header, Identity, RefusedByPeer, WireError
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.slot import Slot
from rljob_runtime.relay.version_store import VersionStore

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.02
MAX_BACKOFF_SECONDS = 1.0
LOOK_SECONDS = 0.05
"""Interval at which a waiting sender checks whether its successor has closed the connection."""
IDLE_SECONDS = 60.0
"""Longest sleep of a sender with nothing to do; every relevant change wakes it."""


class LinkPhase(StrEnum):
    """State of the link to the successor."""

    ALONE = "Alone"
    """There is no successor."""
    CONNECTING = "Connecting"
    CONNECTED = "Connected"
    LOST = "Lost"
    """No success for the rebuild timeout; waits for a new chain or a new version."""
    REFUSED = "Refused"
    """The successor refuses this process or this version; waits for a new chain or a new version."""


@dataclass(frozen=True)
class Target:
    """Successor to feed, and the token to use.

    `issue` counts targets, so that an equal target is still a reason to retry.
    """

    successor: RelayMember | None
    token: FencingToken
    issue: int


class Interrupted(Exception):
    """The target or the version changed, or the process ends: stop the work in progress."""


class Sender:
    """Feeds one successor from a version store. `identity` is the name of this process in the handshake."""

    def __init__(
        self, store: VersionStore, identity: Identity, key: bytes, settings: RelaySettings, transport: Transport = TCP
    ) -> None:
        self.phase = LinkPhase.ALONE
        self.detail = ""
        self.delivered: int | None = None
        """Newest version that the present successor has reported complete."""
        self._store = store
        self._identity = identity
        self._key = key
        self._settings = settings
        self._transport = transport
        self._target = Target(None, FencingToken(), 0)
        self._channel: Channel | None = None
        self._closing = False
        self._succeeded = 0.0
        self._tried: Slot | None = None
        """Version on offer at the last attempt; a later version is a reason to retry."""
        self._lacking: tuple[int, int] | None = None
        self._sent: tuple[int, set[int]] = (-1, set())
        self._service = Service(f"relay-link-{identity.machine}", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._service.start()

    def check(self) -> None:
        """Raise `ServiceEnded` if the sending thread has ended although this sender is open."""
        self._service.check()

    def point(self, successor: RelayMember | None, token: FencingToken) -> None:
        """Feed `successor` from now on. The connection is kept if the successor is unchanged."""
        previous = self._target
        self._target = Target(successor, token, previous.issue + 1)
        if successor != previous.successor:
            self.delivered = None
            self._cut()
        self._store.wake()

    def close(self) -> None:
        """End the thread; returns when it has ended, at most after the socket's timeout."""
        self._closing = True
        self._cut()
        self._store.wake()
        self._service.join()

    def _cut(self) -> None:
        channel = self._channel
        if channel is not None:
            channel.interrupt()

    # --- attempts ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            target = self._target
            if target.successor is None:
                self._rest(target, LinkPhase.ALONE)
                continue
            try:
                self._attempt(target)
            except RefusedByPeer as error:
                self._rest(target, LinkPhase.REFUSED, str(error))
            except WireError as error:
                self._rest(target, LinkPhase.LOST, str(error))

    def _attempt(self, target: Target) -> None:
        """Feed the successor of `target` until the target changes.

        Raises WireError if nothing succeeds for the rebuild timeout, and RefusedByPeer if a retry cannot help.
        """
        self._succeeded = time.monotonic()
        backoff = FIRST_BACKOFF_SECONDS
        while self._target.successor == target.successor and not self._closing:
            began = time.monotonic()
            try:
                self._try(target)
            except Interrupted:
                continue
            except WireError as error:
                if isinstance(error, RefusedByPeer) and error.code not in wire.TRANSIENT:
                    raise
                self._store.counters.add(connections_lost=1)
                self.phase, self.detail = LinkPhase.CONNECTING, str(error)
                if time.monotonic() - self._succeeded > self._settings.rebuild_timeout_seconds:
                    raise WireError(str(error)) from error
            backoff = FIRST_BACKOFF_SECONDS if self._succeeded > began else min(2 * backoff, MAX_BACKOFF_SECONDS)
            self._store.wait(lambda: self._stopped(target), backoff)

    def _try(self, target: Target) -> None:
        """Feed the successor over one connection.

        An unexpected error ends the connection like a break, but not the thread, which later successors need.
        """
        try:
            self._connect_and_feed(target)
        except (Interrupted, WireError):
            raise
        except Exception as error:
            log.exception("%s: a connection failed unexpectedly", self._identity.machine)
            self._store.counters.add(unexpected_errors=1)
            raise WireError(f"unexpected error: {error!r}") from error

    def _connect_and_feed(self, target: Target) -> None:
        self.phase, self._tried = LinkPhase.CONNECTING, self._store.on_offer()
        channel = self._connect(self._target)
        try:
            self.phase, self.detail = LinkPhase.CONNECTED, ""
            self._feed(channel, target)
        finally:
            self._channel = None
            channel.close()

    def _connect(self, target: Target) -> Channel:
        successor = target.successor
        assert successor is not None
        try:
            connection = self._transport.connect(
                successor.host, successor.port, self._settings.answer_seconds, self._settings.silence_seconds
            )
        except OSError as error:
            raise WireError(f"{successor.machine} at {successor.host}:{successor.port}: {error}") from error
        channel = self._channel = Channel(connection)
        try:
            self._check(target)
            with wire.deadline(channel, self._settings.handshake_seconds):
                peer = wire.introduce(channel, self._key, self._identity, target.token)
            if peer != Identity(successor.machine, successor.incarnation):
                raise WireError(f"{successor.host}:{successor.port} is {peer} now, not {successor.machine}")
        except BaseException:
            self._channel = None
            channel.close()
            raise
        return channel

    def _rest(self, target: Target, phase: LinkPhase, detail: str = "") -> None:
        """Wait for another target or, with a successor, for another version."""
        self.phase, self.detail = phase, detail
        if detail:
            log.warning("%s: successor %s: %s", self._identity.machine, phase, detail)
            self._store.wake()

        def stirred() -> bool:
            news = target.successor is not None and self._store.on_offer() is not self._tried
            return self._closing or self._target is not target or news

        while not self._store.wait(stirred, IDLE_SECONDS):
            pass

    # --- feeding -----------------------------------------------------------------------------------------------------

    def _feed(self, channel: Channel, target: Target) -> None:
        """Offer each version for as long as the connection holds.

        Raises WireError when the connection ends, and Interrupted when the successor changes.
        """
        settled: Slot | None = None
        while True:
            slot = self._tried = self._store.on_offer()
            if slot is None or slot is settled:
                self._idle(channel, target, settled)
                continue
            with self._store.holding(slot):
                try:
                    self._deliver(channel, target, slot)
                    settled = slot
                except _Superseded:
                    # Its bytes may still be queued in the socket; the answer to a ping proves that they are not.
                    self._ping(channel)

    def _deliver(self, channel: Channel, target: Target, slot: Slot) -> None:
        """Send one version to the successor until it is complete there.

        Raises _Superseded between chunks when another version is on offer.
        """
        version = slot.manifest.version
        channel.send({"type": "offer"}, slot.manifest.to_json())
        while wanted := self._receive_wanted(channel, slot):
            for index in wanted:
                self._await_chunk(channel, target, slot, index)
                self._count(version, index, channel.send_chunk(slot, index))

    def _receive_wanted(self, channel: Channel, slot: Slot) -> list[int]:
        """Return the chunks that the successor lacks; [] if it holds this version, or a newer one, completely."""
        answer = channel.expect("wanted", "whole", "unwanted")
        version = slot.manifest.version
        wanted = list(_indices(answer, slot.manifest.chunks)) if answer["type"] == "wanted" else []
        if self._lacking != (version, len(wanted)):  # An equal answer means that it accepted nothing: no success.
            self._succeeded = time.monotonic()
        self._lacking = (version, len(wanted))
        if answer["type"] == "whole":
            self.delivered = version
            self._store.wake()
        return wanted

    def _await_chunk(self, channel: Channel, target: Target, slot: Slot, index: int) -> None:
        while True:
            self._check(target)
            if self._store.on_offer() is not slot:
                raise _Superseded
            if slot.has(index):
                return
            self._heartbeat(channel, lambda: slot.has(index) or self._stirred(target, slot))

    def _idle(self, channel: Channel, target: Target, settled: Slot | None) -> None:
        """Send heartbeats while there is nothing to send."""
        self._check(target)
        self._heartbeat(channel, lambda: self._stirred(target, settled))

    def _heartbeat(self, channel: Channel, until: Callable[[], bool]) -> None:
        """Wait for work for at most a heartbeat interval, which ends with a ping.

        The end of the successor's connection is noticed immediately, although nothing is sent meanwhile.
        """
        due = time.monotonic() + self._settings.heartbeat_seconds
        while not self._store.wait(until, max(0.0, min(LOOK_SECONDS, due - time.monotonic()))):
            channel.check()
            if time.monotonic() >= due:
                self._ping(channel)
                return

    def _ping(self, channel: Channel) -> None:
        channel.send({"type": "ping"})
        channel.expect("pong")
        self._succeeded = time.monotonic()

    def _stirred(self, target: Target, slot: Slot | None) -> bool:
        return self._stopped(target) or self._store.on_offer() is not slot

    def _stopped(self, target: Target) -> bool:
        return self._closing or self._target.successor != target.successor

    def _check(self, target: Target) -> None:
        if self._stopped(target):
            raise Interrupted

    def _count(self, version: int, index: int, nbytes: int) -> None:
        if self._sent[0] != version:
            self._sent = (version, set())
        self._store.counters.add(bytes_sent=nbytes, chunks_sent=1, chunks_resent=int(index in self._sent[1]))
        self._sent[1].add(index)


class _Superseded(Exception):
    """Another version is on offer."""


def _indices(answer: Header, chunks: int) -> Iterator[int]:
    """Return the chunk indices of a `wanted` frame. Raises WireError for a range that does not fit the version."""
    try:
        ranges = [(int(first), int(last)) for first, last in answer["ranges"]]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise WireError(f"a frame `wanted` without ranges: {answer}") from None
    for first, last in ranges:
        if not 0 <= first < last <= chunks:
            raise WireError(f"chunks {first} to {last} are requested of {chunks}")
        yield from range(first, last)
