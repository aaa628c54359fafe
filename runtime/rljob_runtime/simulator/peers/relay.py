"""Simulated relays: weights pass down the chain chunk by chunk.

Each machine has a complete version one hop after its predecessor (Laminar §4; T = (p + k − 2)·(M/k·Tb + Ts)). Links are
TCP: they lose nothing, but may wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from rljob_runtime.protocols import Chain, Refused, RelayMember, RelayStatus, TermFence
from rljob_runtime.simulator.core.events import Observe, Received, unobserved
from rljob_runtime.simulator.core.process_clock import loop_time

RETRY_SECONDS = 0.25
"""Interval at which a blocked link is tried."""
PROBE_SECONDS = 0.5
"""Time for a machine to answer another one."""


@dataclass
class Weights:
    """A machine's shared memory: the newest complete version.

    It outlives the machine's processes. `full`: number of faults that fill it."""

    whole: int | None = None
    content: int = 0
    full: int = 0


class SimulatedRelay:
    """`protocols.Relay`; `receive` is its socket."""

    def __init__(
        self,
        machine: str,
        weights: Weights | None = None,
        network: Network | None = None,
        observe: Observe = unobserved,
    ) -> None:
        self.machine = machine
        self.weights = weights or Weights()
        self.chain: Chain | None = None
        self._fence = TermFence(machine)
        self._network = network
        self._observe = observe
        self._bytes = 0
        self._commits = 0

    async def status(self, term: int) -> RelayStatus:
        self._fence.check(term)
        epoch, revision = (self.chain.epoch, self.chain.revision) if self.chain else (0, 0)
        return RelayStatus(
            self.machine, self.machine, 1, epoch, revision, self.weights.whole, None, 0, self._bytes, self._commits, 0
        )

    async def join(self, term: int, chain: Chain) -> None:
        self._fence.check(term)
        if self.chain is not None and (chain.epoch, chain.revision) < (self.chain.epoch, self.chain.revision):
            raise Refused(f"chain ({chain.epoch}, {chain.revision}) is older than the one in force")
        self.chain = chain
        # A predecessor with a complete version sends it when it is connected to a successor.
        if self._network is not None and self.weights.whole is not None:
            self._network.feed_successor(self)

    async def probe(self, term: int, member: RelayMember) -> bool:
        self._fence.check(term)
        if self._network is None or self._network.reaches(self.machine, member.machine):
            return True
        await asyncio.sleep(PROBE_SECONDS)
        return False

    def receive(self, version: int, content: int, nbytes: int, since: float) -> None:
        """Receive a complete version."""
        if self.weights.whole is not None and version < self.weights.whole:
            return
        self.weights.whole, self.weights.content = version, content
        self._bytes += nbytes
        self._commits += 1
        self._observe(Received(self.machine, version, since))

    def successor(self) -> str | None:
        """Return the machine that it sends to."""
        names = [member.machine for member in self.chain.members] if self.chain else []
        if self.machine not in names or self.machine == names[-1]:
            return None
        return names[names.index(self.machine) + 1]


class NetworkLinks(Protocol):
    """Open links between machines."""

    def open(self, sender: str, receiver: str) -> bool:
        """Check whether bytes flow from one machine (or the trainer) to another now."""
        ...

    def answers(self, sender: str, receiver: str) -> bool:
        """Check whether a machine answers another one; it does if its relay ended or hangs."""
        ...


class Network:
    """Carries weights between relays.

    `transfer_seconds`: all bytes over one link; `hop_seconds`: delay per hop of the chain."""

    def __init__(
        self, hop_seconds: float = 0.2, transfer_seconds: float = 0.0, roads: NetworkLinks | None = None
    ) -> None:
        self.hop_seconds = hop_seconds
        self.transfer_seconds = transfer_seconds
        self.relays: dict[str, SimulatedRelay] = {}
        self._roads = roads
        self._tasks: set[asyncio.Task[None]] = set()

    def ship(self, sender: str, machine: str, version: int, content: int) -> None:
        """Send the trainer's weights to the chain's master, and from there along the chain."""
        self._start(sender, machine, version, content, self.transfer_seconds + self.hop_seconds)

    def reaches(self, sender: str, receiver: str) -> bool:
        """Check whether a machine answers another one."""
        return self._roads is None or self._roads.answers(sender, receiver)

    def feed_successor(self, relay: SimulatedRelay) -> None:
        """Send a relay's version to its successor, if that lacks it."""
        self._pass_on(relay, self.transfer_seconds + self.hop_seconds)

    def _pass_on(self, relay: SimulatedRelay, seconds: float) -> None:
        successor, version = relay.successor(), relay.weights.whole
        if successor is not None and version is not None:
            self._start(relay.machine, successor, version, relay.weights.content, seconds)

    def _start(self, sender: str, machine: str, version: int, content: int, seconds: float) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(sender, machine, version, content, seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, sender: str, machine: str, version: int, content: int, seconds: float) -> None:
        since, giver = loop_time(), self.relays.get(sender)
        await asyncio.sleep(seconds)
        while (relay := self.relays.get(machine)) is not None:
            if self.relays.get(sender) is not giver or (relay.weights.whole or 0) >= version:
                return
            if not relay.weights.full and (self._roads is None or self._roads.open(sender, machine)):
                relay.receive(version, content, 1, since)
                self._pass_on(relay, self.hop_seconds)
                return
            await asyncio.sleep(RETRY_SECONDS)
