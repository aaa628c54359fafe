"""Peers that live elsewhere: each protocol method is one call over a `PeerChannel`, under a bound that is given, not
chosen here.

A binding is a wire (Ray, or the simulator's) and a way to place peers; it holds no decision, timer of its own or retry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_runtime.protocols import (
    Chain,
    ComputeReport,
    ContributeReport,
    ContributionReceipt,
    GenerateRequest,
    PublishReport,
    RelayMember,
    RelayStatus,
    ReplicaReport,
    TrainerState,
    TrainReport,
)
from rljob_runtime.protocols.trajectory import Group, TrajectoryKey


@dataclass(frozen=True)
class CallTimeouts:
    """The longest a call may take, in seconds, by what it does at the far end."""

    command: float = 30.0
    """Short commands: submit, abort, join."""
    poll: float = 15.0
    """What a poll may take beyond its own wait: it tells soonest of a replica that hangs."""
    beat: float = 5.0
    """The status that serves as a heartbeat."""
    load: float = 300.0
    """Weights from the relay's segment into an engine."""
    start: float = 1800.0
    """Making an actor: importing an engine, loading a model or a checkpoint."""
    train: float = 7200.0
    """An update, a copy of the weights, a checkpoint: the trainer does one thing at a time."""
    gradients: float = 300.0
    """A lent machine computes a bounded number of tokens, or brings its sums to the trainer."""
    release: float = 60.0
    """It ends the computation in hand, which is meant to take a few seconds; its engines may wait for that."""
    join: float = 20.0
    """Until a machine that is a member shows up as a node."""


class PeerChannel(Protocol):
    """The way to one peer. Raises the protocol module's errors only."""

    async def call(self, bound: float, method: str, *arguments: Any) -> Any:
        """The answer of `method`, or `PeerGone`, `PeerTimeout` after `bound` seconds, or what the peer refused with."""
        ...


class RemoteReplica:
    """A replica at the end of a wire."""

    def __init__(self, name: str, wire: PeerChannel, bounds: CallTimeouts) -> None:
        self.name = name
        self._wire = wire
        self._bounds = bounds

    async def make_room(self, term: int, tensor_parallel: int) -> None:
        await self._wire.call(self._bounds.load, "make_room", term, tensor_parallel)

    async def lay_out(self, term: int, tensor_parallel: int) -> None:
        await self._wire.call(self._bounds.start, "lay_out", term, tensor_parallel)

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        await self._wire.call(self._bounds.command, "submit", term, tuple(requests))

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        await self._wire.call(self._bounds.command, "abort", term, dict(attempts))

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        report: ReplicaReport = await self._wire.call(
            wait_seconds + self._bounds.poll, "poll", term, after, wait_seconds
        )
        return report

    async def load(self, term: int, version: int) -> int:
        loaded: int = await self._wire.call(self._bounds.load, "load", term, version)
        return loaded


class RemoteWorker:
    """A gradient worker at the end of a wire."""

    def __init__(self, name: str, wire: PeerChannel, bounds: CallTimeouts) -> None:
        self.name = name
        self._wire = wire
        self._bounds = bounds

    async def compute(self, term: int, step: int, version: int, groups: Sequence[Group]) -> ComputeReport:
        report: ComputeReport = await self._wire.call(
            self._bounds.gradients, "compute", term, step, version, tuple(groups)
        )
        return report

    async def deliver(self, term: int, step: int, number: int, inbox: RelayMember) -> ContributionReceipt:
        receipt: ContributionReceipt = await self._wire.call(
            self._bounds.gradients, "deliver", term, step, number, inbox
        )
        return receipt

    async def release(self, term: int) -> None:
        # It waits for the call in hand.
        await self._wire.call(self._bounds.release, "release", term)


class RemoteRelay:
    """A relay at the end of a wire."""

    def __init__(self, machine: str, wire: PeerChannel, bounds: CallTimeouts) -> None:
        self.machine = machine
        self._wire = wire
        self._bounds = bounds

    async def status(self, term: int) -> RelayStatus:
        status: RelayStatus = await self._wire.call(self._bounds.beat, "status", term)
        return status

    async def join(self, term: int, chain: Chain) -> None:
        await self._wire.call(self._bounds.command, "join", term, chain)

    async def probe(self, term: int, member: RelayMember) -> bool:
        reached: bool = await self._wire.call(self._bounds.beat, "probe", term, member)
        return reached


class RemoteTrainer:
    """The trainer's ranks as one: every rank hears every call, in the same order; the first rank's answer counts."""

    def __init__(self, ranks: PeerChannel, bounds: CallTimeouts) -> None:
        self._ranks = ranks
        self._bounds = bounds

    async def start(self, term: int) -> TrainerState:
        state: TrainerState = await self._ranks.call(self._bounds.start, "start", term)
        return state

    async def contribute(self, term: int, step: int, groups: Sequence[Group]) -> ContributeReport:
        report: ContributeReport = await self._ranks.call(self._bounds.train, "contribute", term, step, tuple(groups))
        return report

    async def open_gradient_inboxes(self, term: int, count: int) -> tuple[RelayMember, ...]:
        inboxes: tuple[RelayMember, ...] = await self._ranks.call(
            self._bounds.command, "open_gradient_inboxes", term, count
        )
        return inboxes

    async def accept(self, term: int, receipt: ContributionReceipt, groups: Sequence[Group]) -> ContributeReport:
        report: ContributeReport = await self._ranks.call(self._bounds.train, "accept", term, receipt, tuple(groups))
        return report

    async def train(self, term: int, step: int, groups: Sequence[Group]) -> TrainReport:
        report: TrainReport = await self._ranks.call(self._bounds.train, "train", term, step, tuple(groups))
        return report

    async def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        report: PublishReport = await self._ranks.call(self._bounds.train, "publish", term, version, step, chain)
        return report

    async def checkpoint(self, term: int, step: int, standing: str) -> str:
        name: str = await self._ranks.call(self._bounds.train, "checkpoint", term, step, standing)
        return name

    async def export(self, term: int) -> str:
        path: str = await self._ranks.call(self._bounds.train, "export", term)
        return path
