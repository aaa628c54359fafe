"""Receiver: listens, admits one predecessor, writes what it sends into the segment, verifies and commits.

Only one connection at a time fills the segment. A connection with a higher token, or a new one of the same predecessor,
replaces the present connection, which is ended first. An unfinished version survives a change of connections: the next
predecessor is asked for the missing chunks.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable

from rljob_runtime.relay.config import RelayConfig
from rljob_runtime.relay.fencing import FencingToken
from rljob_runtime.relay.manifest import Manifest, ManifestError
from rljob_runtime.relay.network import wire
from rljob_runtime.relay.network.service_thread import Service
from rljob_runtime.relay.network.transport import Connection
from rljob_runtime.relay.network.wire import Caller, Channel, Header, Identity, RefusedByPeer, WireError
from rljob_runtime.relay.segment import VersionOrder
from rljob_runtime.relay.slot import SegmentFull, Slot
from rljob_runtime.relay.version_store import VersionStore

log = logging.getLogger(__name__)

MAX_CALLERS, MAX_CALLERS_OF_A_HOST = 16, 4
"""Limits of connections in the handshake; further ones are closed immediately. One host cannot block another."""
MAX_ROUNDS = 8
"""Requests for missing chunks of one version on one connection before the connection is ended."""

Admission = Callable[[Identity, FencingToken], tuple[str, str] | None]
"""Decides whether an authenticated caller is admitted; returns None, or (code, reason) of the refusal."""


class Receiver:
    """Listens on the configured host and port, see `address`. Raises OSError if the address cannot be bound."""

    def __init__(self, store: VersionStore, config: RelayConfig, admit: Admission) -> None:
        self._store = store
        self._identity = config.identity
        self._key = config.key
        self._settings = config.settings
        self._admit = admit
        self._listener = config.transport.listen(config.host, config.port, config.settings.silence_seconds)
        self.address = self._listener.address
        self._callers = _Callers()
        self._turn = threading.Lock()
        self._active: _Reception | None = None
        self._closing = False
        self._service = Service(f"relay-receiver-{config.machine}", self._accept)

    def start(self) -> None:
        """Start accepting connections."""
        self._service.start()

    def check(self) -> None:
        """Raise `ServiceEnded` if the accepting thread has ended although this receiver is open."""
        self._service.check()

    @property
    def predecessor(self) -> Identity | None:
        """Machine that feeds this relay now, or None."""
        active = self._active
        return active.peer if active is not None and not active.ended.is_set() else None

    def cut(self) -> None:
        """End the present connection, because its peer is no longer the predecessor."""
        active = self._active
        if active is not None:
            active.channel.interrupt()

    def close(self) -> None:
        """Stop listening, end the present connection, and wait for both threads.

        Callers in the handshake are refused.
        """
        self._closing = True
        self._listener.interrupt()
        self._service.join()
        self._listener.close()
        with self._turn:  # A thread inside may still admit its caller; later ones see `_closing`.
            active = self._active
        if active is not None:
            active.channel.interrupt()
            active.ended.wait()

    def _accept(self) -> None:
        while True:
            try:
                connection, host = self._listener.accept()
            except OSError as error:
                if not self._closing:
                    log.warning("%s: accepting: %s", self._identity.machine, error)
                if self._store.wait(lambda: self._closing, 0.2):
                    return
                continue
            if self._closing:
                connection.close()
                return
            self._start_handshake(connection, host)

    def _start_handshake(self, connection: Connection, host: str) -> None:
        """Start a thread for the caller. Never raises, because the accepting thread must live as long as the relay."""
        if not self._callers.enter(host):
            self._reject(connection, host, "too many callers are in the handshake")
            return
        try:
            threading.Thread(target=self._serve, args=(connection, host), daemon=True).start()
        except RuntimeError as error:  # the system cannot start a thread
            self._callers.leave(host)
            self._reject(connection, host, str(error))

    def _reject(self, connection: Connection, host: str, why: str) -> None:
        connection.close()
        self._store.counters.add(connections_refused=1)
        log.warning("%s: refused a connection from %s: %s", self._identity.machine, host, why)

    def _serve(self, connection: Connection, host: str) -> None:
        channel = Channel(connection)
        try:
            reception = self._admit_caller(channel)
        except (WireError, RefusedByPeer) as error:
            self._reject(connection, host, str(error))
            return
        except Exception as error:
            log.exception("%s: a handshake failed unexpectedly", self._identity.machine)
            self._store.counters.add(unexpected_errors=1)
            self._reject(connection, host, repr(error))
            return
        finally:
            self._callers.leave(host)
        reception.run()

    def _admit_caller(self, channel: Channel) -> _Reception:
        """Perform the handshake; on success the caller is the active connection and the one before it has ended."""
        with wire.deadline(channel, self._settings.handshake_seconds):
            caller = Caller(channel, self._key)
        with self._turn:
            if self._closing:
                caller.refuse(wire.BUSY, "this relay is ending")
            refusal = self._admit(caller.identity, caller.token)
            if refusal is not None:
                caller.refuse(*refusal)
            previous = self._active
            if previous is not None:
                previous.channel.interrupt()
                if not previous.ended.wait(self._settings.silence_seconds):
                    caller.refuse(wire.BUSY, "the previous connection is still being ended")
            self._active = _Reception(channel, caller.identity, self._store)
            try:
                caller.welcome(self._identity)
            except WireError:
                self._active.ended.set()
                raise
            return self._active


class _Callers:
    """Connections in the handshake, by host."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_host: Counter[str] = Counter()

    def enter(self, host: str) -> bool:
        """Count one more connection if the limits allow it."""
        with self._lock:
            room = self._of_host.total() < MAX_CALLERS and self._of_host[host] < MAX_CALLERS_OF_A_HOST
            if room:
                self._of_host[host] += 1
            return room

    def leave(self, host: str) -> None:
        """Count one connection less."""
        with self._lock:
            self._of_host[host] -= 1
            self._of_host += Counter()  # drops hosts without connections


class _Reception:
    """One predecessor's connection: a small state machine over its frames."""

    def __init__(self, channel: Channel, peer: Identity, store: VersionStore) -> None:
        self.channel = channel
        self.peer = peer
        self.ended = threading.Event()
        self._store = store
        self._draft: Slot | None = None
        self._expected = 0
        """Chunks of the last request that are still missing."""
        self._rounds = 0

    def run(self) -> None:
        """Serve until the connection ends. Never raises."""
        try:
            while True:
                header, payload_bytes = self.channel.receive()
                self._take(header, payload_bytes)
        except RefusedByPeer as error:
            log.error("refused %s from %s: %s", error.code, self.peer.machine, error)
        except WireError as error:
            log.info("the connection from %s ended: %s", self.peer.machine, error)
        except Exception:
            log.exception("the connection from %s ended unexpectedly", self.peer.machine)
            self._store.counters.add(unexpected_errors=1)
        finally:
            self.channel.close()
            self.ended.set()

    def _take(self, header: Header, payload_bytes: int) -> None:
        match header["type"]:
            case "ping":
                self.channel.send({"type": "pong"})
            case "offer":
                self._handle_offer(self.channel.payload(payload_bytes, wire.MAX_MANIFEST_BYTES))
            case "chunk":
                self._handle_chunk(header, payload_bytes)
            case other:
                raise WireError(f"a frame of type {other!r}")

    def _handle_offer(self, text: bytes) -> None:
        self._draft, self._rounds = None, 0
        try:
            manifest = Manifest.from_json(text)
            if not manifest.sealed:
                raise ManifestError("checksums: missing")
            self._draft = self._store.admit(manifest)
        except ManifestError as error:
            raise WireError(f"an inconsistent manifest: {error}") from error
        except VersionOrder as error:
            self._refuse(wire.VERSION_REUSED, str(error))
        except SegmentFull as error:
            self._refuse(wire.FULL, str(error))
        if self._draft is None:
            complete = self._store.complete
            held = complete is not None and complete.manifest.version == manifest.version
            self.channel.send({"type": "whole" if held else "unwanted", "version": manifest.version})
        else:
            self._answer(self._draft)

    def _handle_chunk(self, header: Header, payload_bytes: int) -> None:
        draft, index = self._draft, header.get("index")
        if draft is None or header.get("version") != draft.manifest.version or not isinstance(index, int):
            raise WireError(f"a chunk of version {header.get('version')} that was not requested")
        if not 0 <= index < draft.manifest.chunks or draft.has(index) or not self._expected:
            raise WireError(f"chunk {index}, which was not requested")
        try:
            target = draft.chunk(index)
        except SegmentFull as error:
            self._refuse(wire.FULL, str(error))
        if payload_bytes != len(target):
            raise WireError(f"chunk {index} of {payload_bytes} bytes instead of {len(target)}")
        checksum = self.channel.payload_into(target)
        self._store.counters.add(bytes_received=payload_bytes, chunks_received=1)
        if not self._store.accept(draft, index, checksum):
            self._store.counters.add(checksum_failures=1)
            log.warning("chunk %d of version %d from %s is damaged", index, draft.manifest.version, self.peer.machine)
        self._expected -= 1
        if not self._expected:
            self._answer(draft)

    def _answer(self, draft: Slot) -> None:
        """Request the missing chunks, or commit."""
        missing = draft.missing()
        version = draft.manifest.version
        if missing:
            self._rounds += 1
            if self._rounds > MAX_ROUNDS:
                self._refuse(wire.CORRUPT, f"version {version} is incomplete after {MAX_ROUNDS} rounds")
            self._expected = sum(last - first for first, last in missing)
            self.channel.send({"type": "wanted", "version": version, "ranges": missing})
            return
        self._draft = None
        if not self._store.commit(draft):
            raise WireError(f"version {version} was superseded here")
        log.info("version %d is complete, from %s", version, self.peer.machine)
        self.channel.send({"type": "whole", "version": version})

    def _refuse(self, code: str, reason: str) -> None:
        self.channel.refuse(code, reason)
        raise RefusedByPeer(code, reason)
