"""A rollout machine as the fleet holds it."""

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
from rljob_runtime.scheduling.fault_detection.suspicion import Heartbeats

T = TypeVar("T")
log = logging.getLogger(__name__)

RESTING = 0
"""The layout of a machine whose seats all rest."""


class MachineLeft(PeerGone):
    """The machine left the fleet for a reason of its own while it was asked."""


@dataclass
class RolloutMachine:
    """A seated machine. `replicas` are those of its seats that generate in its layout; `loaded` is the version that
    they hold, `whole` the newest that its relay holds."""

    peers: MachinePeers
    tensor_parallel: int
    replicas: tuple[Replica, ...]
    host: str
    port: int
    whole: int | None
    loaded: int | None = None
    joined: tuple[int, int] | None = None
    received: int = 0
    beats: Heartbeats = field(default_factory=Heartbeats)
    generating: bool = False
    """Whether an engine of it has made a token since it is seated."""
    lost_by: str = ""
    """Why it left the fleet, where it failed."""
    lent: bool = False
    """Its worker has the accelerators: nothing is laid out on them meanwhile."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)

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

    def note(self, status: RelayStatus) -> None:
        """What its relay just answered."""
        self.whole = status.whole
        self.received = status.chunks_received
        self.host, self.port = status.host, status.port

    def lend_accelerators(self) -> bool:
        """Its seats hold nothing from now on, whether they have made room yet or not; False where the worker needs
        none of theirs."""
        if self.peers.shares_accelerators:
            self.lent, self.loaded, self.tensor_parallel = True, None, RESTING
        return self.lent

    async def make_room(self, term: int) -> None:
        """Have all seats rest, where the worker needs their accelerators. Raises what a seat raises."""
        if self.peers.shares_accelerators:
            await asyncio.gather(*(seat.make_room(term, RESTING) for seat in self.peers.seats))

    async def while_here(self, call: Coroutine[Any, Any, T]) -> T:
        """Its answer. Raises `MachineLeft` as soon as the machine left the fleet."""
        task, gone = asyncio.ensure_future(call), asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise MachineLeft(f"{self.name} left while it was asked")
        finally:
            for one in (task, gone):
                one.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def unless_gone(self, call: Coroutine[Any, Any, T]) -> T | None:
        """As `while_here`, but None where the machine left."""
        try:
            return await self.while_here(call)
        except MachineLeft:
            return None

    @property
    def address(self) -> RelayMember:
        """Where its relay listens."""
        return RelayMember(self.name, self.member.incarnation, self.host, self.port)

    async def end_loan(self, term: int) -> None:
        """Have its worker forget what it was lent for, in this term or by a coordinator that is no more."""
        if self.worker is None:
            return
        try:
            await self.worker.release(term)
        except PeerError as error:
            log.info("%s was not told that it is lent no more: %s", self.name, error)


async def vacate(peers: MachinePeers, term: int) -> None:
    """Before seats are laid out: their worker, lent by whomever, gives the accelerators back. Raises what it raises;
    then they may not be free."""
    if peers.worker is not None and peers.shares_accelerators:
        await peers.worker.release(term)


def loss_reason(error: PeerError) -> str:
    """Why a machine is lost that failed a call with this."""
    match error:
        case PeerGone():
            return "ProcessExited"
        case PeerTimeout():
            return "HeartbeatLost"
        case _:
            return "Refused"


def machine_of(replica: str) -> str:
    """The machine of a replica, by its name.

    >>> machine_of("rollout-0/replica-1")
    'rollout-0'
    """
    return replica.partition("/")[0]
