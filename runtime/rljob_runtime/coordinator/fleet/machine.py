"""Rollout machine: one member of the fleet, as the coordinator sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rljob_api.status import Member
from rljob_runtime.protocols import (
    GradientWorker,
    MachinePeers,
    PeerError,
    PeerGone,
    PeerTimeout,
    Relay,
    RelayMember,
    RelayStatus,
    Replica,
)
from rljob_runtime.scheduling.adaptive_tp.kv_drops import KvDrops
from rljob_runtime.scheduling.fault_detection.suspicion import Heartbeats

T = TypeVar("T")
log = logging.getLogger(__name__)

SLEEPING = 0
"""The layout of a machine whose engines are all asleep."""


class MachineLeft(PeerGone):
    """The machine left the fleet while a call to it was running."""


@dataclass
class RolloutMachine:
    """A machine that has joined.

    `replicas` are the engine slots that generate in its layout. `loaded_version` is the version that they hold.
    `complete_version` is the newest version that its relay holds completely.
    """

    peers: MachinePeers
    tensor_parallel: int
    replicas: tuple[Replica, ...]
    host: str
    port: int
    complete_version: int | None
    loaded_version: int | None = None
    adopted_chain: tuple[int, int] | None = None
    """The (epoch, revision) of the chain that its relay has adopted."""
    chunks_received: int = 0
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    generating: bool = False
    """Whether one of its engines has generated a token since it joined."""
    loss_reason: str = ""
    """Why it left the fleet; empty if it did not fail."""
    loaned: bool = False
    """Whether its gradient worker uses the accelerators. The layout does not change meanwhile."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while its layout changes or its replicas load."""
    stopping: bool = False
    """Whether its responses stop for a layout switch: it answers nothing else meanwhile."""
    visits: bool = False
    """Whether it measures another layout while it rests."""
    may_overrun: bool = False
    """Whether that visit, or the last one, may outlast the rest."""
    kv_drops: KvDrops = field(default_factory=KvDrops)
    """The KV files that its replicas still have to remove."""
    dropping: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By replica: the removal in progress."""

    @property
    def member(self) -> Member:
        return self.peers.member

    @property
    def relay(self) -> Relay:
        return self.peers.relay

    @property
    def name(self) -> str:
        return self.member.machine

    @property
    def worker(self) -> GradientWorker | None:
        return self.peers.worker

    @property
    def address(self) -> RelayMember:
        """Where its relay listens."""
        return RelayMember(self.name, self.member.incarnation, self.host, self.port)

    def record_status(self, status: RelayStatus) -> None:
        """Record the newest status of its relay."""
        self.complete_version = status.whole
        self.chunks_received = status.chunks_received
        self.host, self.port = status.host, status.port

    def loan_accelerators(self) -> bool:
        """Mark the engines as asleep and without weights.

        Return False if the worker does not need their accelerators.
        """
        if self.peers.shares_accelerators:
            self.loaned, self.loaded_version, self.tensor_parallel = True, None, SLEEPING
        return self.loaned

    async def sleep_engines(self, term: int) -> None:
        """Put all engines to sleep if the worker needs their accelerators. Raises what a replica raises."""
        if self.peers.shares_accelerators:
            await asyncio.gather(*(one.release_accelerators(term, SLEEPING) for one in self.peers.replicas))

    async def run_while_member(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the result of `call`. Raises `MachineLeft` as soon as the machine leaves the fleet."""
        task, left = asyncio.ensure_future(call), asyncio.ensure_future(self.left.wait())
        try:
            await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise MachineLeft(f"{self.name} left the fleet during a call")
        finally:
            for one in (task, left):
                one.cancel()
            await asyncio.gather(task, left, return_exceptions=True)

    async def run_unless_left(self, call: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `call`, or None if the machine leaves the fleet first."""
        try:
            return await self.run_while_member(call)
        except MachineLeft:
            return None

    async def release_worker(self, term: int) -> None:
        """End a loan at its worker, also one that an earlier coordinator made. Errors are only logged."""
        if self.worker is None:
            return
        try:
            await self.worker.release(term)
        except PeerError as error:
            log.info("the worker of %s was not released: %s", self.name, error)


async def release_accelerators(peers: MachinePeers, term: int) -> None:
    """Have the machine's gradient worker release its accelerators. If this raises, they may still be in use."""
    if peers.worker is not None and peers.shares_accelerators:
        await peers.worker.release(term)


def loss_reason_for(error: PeerError) -> str:
    """Return why a machine is lost whose call failed with `error`."""
    match error:
        case PeerGone():
            return "ProcessExited"
        case PeerTimeout():
            return "HeartbeatLost"
        case _:
            return "Refused"


def machine_of(replica: str) -> str:
    """Return the machine of a replica, by its name.

    >>> machine_of("rollout-0/replica-1")
    'rollout-0'
    """
    return replica.partition("/")[0]
