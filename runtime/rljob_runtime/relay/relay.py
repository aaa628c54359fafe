"""Relay: the weight store of a rollout machine, fed by its predecessor, feeding its successor (Laminar §4).

`Relay` has the asynchronous methods of `protocols.Relay`. Its threads do everything that takes time, so these methods
return immediately, except `probe`.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from rljob_runtime.protocols import Chain, Refused, RelayMember, RelayStatus, check_term
from rljob_runtime.relay.config import RelayConfig
from rljob_runtime.relay.fencing import FencingToken, predecessor
from rljob_runtime.relay.network import wire
from rljob_runtime.relay.network.wire import Identity
from rljob_runtime.relay.receiver import Receiver
from rljob_runtime.relay.segment import SegmentWriter, sweep_segments
from rljob_runtime.relay.sender import Sender
from rljob_runtime.relay.version_store import Counters, VersionStore

MIN_KEY_BYTES = 16


def read_key(path: Path) -> bytes:
    """Read the job's relay key. Raises ValueError, without the key, if the file holds less than 16 bytes."""
    key = path.read_bytes().strip()
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"{path}: the relay key has {len(key)} bytes; at least {MIN_KEY_BYTES} are required")
    return key


class Relay:
    """Relay of a machine, which listens and owns a segment.

    A version that an earlier process of this machine committed there is served again. Segments of dead processes
    elsewhere in the shared memory are removed. Raises OSError if the address cannot be bound, and SegmentBusy if
    another process writes the segment. Use as a context manager, or `close` it.
    """

    def __init__(self, config: RelayConfig) -> None:
        self.machine = config.machine
        self.identity = config.identity
        self._settings = config.settings
        self._transport = config.transport
        self._token = FencingToken()
        self._chain: Chain | None = None
        self._successor: RelayMember | None = None
        self._lock = threading.Lock()
        self._closed = False
        sweep_segments(keep=config.folder)
        self._store = VersionStore(SegmentWriter.open(config.folder), patience=config.settings.rebuild_timeout_seconds)
        self._sender = Sender(self._store, self.identity, config.key, config.settings, config.transport)
        try:
            self._receiver = Receiver(self._store, config, self._admit)
        except OSError:
            self._store.close()
            raise
        self._sender.start()
        self._receiver.start()

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) on which it listens."""
        return self._receiver.address

    @property
    def counters(self) -> Counters:
        """Totals since the start."""
        return self._store.counters

    async def status(self, term: int) -> RelayStatus:
        """Return its address and what it holds. Raises StaleTerm."""
        with self._lock:
            self._check_term(term)
            return self._report()

    async def join(self, term: int, chain: Chain) -> None:
        """Adopt `chain` and feed the successor in it. Adopting the same chain again retries a lost successor.

        Raises StaleTerm. Raises Refused if the chain is older than the one in use, has the same number with other
        members, or does not contain this machine in this incarnation.
        """
        with self._lock:
            self._check_term(term)
            self._successor = self._place_in(chain)
            self._chain = chain
            self._token = self._token.raised(FencingToken(term, chain.epoch, chain.revision))
            self._sender.point(self._successor, self._token)
            if self._predecessor_changed(chain):
                self._receiver.cut()

    async def probe(self, term: int, member: RelayMember) -> bool:
        """See `protocols.Relay.probe`."""
        with self._lock:
            self._check_term(term)
        try:
            return await asyncio.to_thread(
                self._transport.reaches, member.host, member.port, self._settings.answer_seconds
            )
        except OSError as error:
            raise Refused(f"relay {self.machine}: {member.host}:{member.port} cannot be probed: {error}") from error

    def close(self) -> None:
        """End both threads and remove the segment; replicas keep what they have mapped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._sender.close()
        self._receiver.close()
        self._store.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check_term(self, term: int) -> None:
        """Refuse a replaced coordinator; pass a newer coordinator's term to the successor.

        Raises `ServiceEnded` if a thread of the relay has ended; its machine then counts as lost.
        """
        self._receiver.check()
        self._sender.check()
        check_term(term, self._token.term, f"relay {self.machine}")
        self._raise_term(term)

    def _raise_term(self, term: int) -> None:
        if term == self._token.term:
            return
        self._token = self._token.raised(FencingToken(term))
        if self._chain is not None:
            self._sender.point(self._successor, FencingToken(term, self._chain.epoch, self._chain.revision))

    def _place_in(self, chain: Chain) -> RelayMember | None:
        """Return our successor in `chain`. Raises Refused if the chain cannot be adopted."""
        number = (chain.epoch, chain.revision)
        if self._chain != chain and number <= self._token.chain:
            known = self._chain is not None and number == (self._chain.epoch, self._chain.revision)
            if number < self._token.chain or known:
                trouble = "is known with other members" if known else f"is older than {self._token.chain}"
                raise Refused(f"relay {self.machine}: chain {number} {trouble}")
        names = [member.machine for member in chain.members]
        if len(set(names)) != len(names):
            raise Refused(f"relay {self.machine}: chain members {names} contain a machine twice")
        if self.machine not in names:
            raise Refused(f"relay {self.machine}: not a member of chain {number}: {names}")
        place = names.index(self.machine)
        if chain.members[place].incarnation != self.identity.incarnation:
            expected = chain.members[place].incarnation
            raise Refused(
                f"relay {self.machine}: the chain has incarnation {expected}, this is {self.identity.incarnation}"
            )
        return chain.members[place + 1] if place + 1 < len(names) else None

    def _admit(self, caller: Identity, token: FencingToken) -> tuple[str, str] | None:
        with self._lock:
            refusal = self._token.refusal(token)
            if refusal is not None:
                return wire.STALE, refusal
            if self._chain is not None and token.chain == (self._chain.epoch, self._chain.revision):
                expected = predecessor(self._chain, self.machine)
                if caller.machine != expected:
                    return wire.NOT_PREDECESSOR, f"{caller.machine} is not the predecessor here; {expected} is"
            self._raise_term(token.term)
            self._token = self._token.raised(token)
            return None

    def _predecessor_changed(self, chain: Chain) -> bool:
        now = self._receiver.predecessor
        if now is None:
            return False
        incarnations = {member.machine: member.incarnation for member in chain.members}
        expected = predecessor(chain, self.machine)
        return now.machine != expected or incarnations.get(now.machine, now.incarnation) != now.incarnation

    def _report(self) -> RelayStatus:
        complete, draft, counters = self._store.complete, self._store.draft, self.counters
        feeder, successor = self._receiver.predecessor, self._successor
        return RelayStatus(
            machine=self.machine,
            host=self.address[0],
            port=self.address[1],
            epoch=self._token.epoch,
            revision=self._token.revision,
            whole=complete.manifest.version if complete is not None else None,
            receiving=draft.manifest.version if draft is not None else None,
            chunks_received=draft.accepted if draft is not None else 0,
            bytes_received_total=counters.bytes_received,
            commits_total=counters.commits,
            checksum_failures_total=counters.checksum_failures,
            bytes_sent_total=counters.bytes_sent,
            chunks_resent_total=counters.chunks_resent,
            connections_lost_total=counters.connections_lost,
            predecessor=feeder.machine if feeder is not None else None,
            successor=successor.machine if successor is not None else None,
            link=self._sender.phase.value,
            link_detail=self._sender.detail,
            delivered=self._sender.delivered,
        )
