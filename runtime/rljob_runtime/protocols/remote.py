"""Remote peers: each protocol method is one call over a `PeerChannel`, with a given timeout.

A backend is a channel (Ray's, or the simulator's) and a way to place peers. It holds no decision, timer or retry.
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
    EngineProfile,
    GenerateRequest,
    KeptEngines,
    KvExport,
    ProfileLimits,
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
    """The longest that a call may take, in seconds, by what the peer does."""

    command: float = 30.0
    """Short commands: submit, abort, join."""
    poll: float = 15.0
    """A poll, in addition to its own wait. It is the first call to show that a replica hangs."""
    heartbeat: float = 5.0
    """The status that serves as a heartbeat."""
    load: float = 300.0
    """Weights from the relay's segment into an engine."""
    start: float = 1800.0
    """Making an actor: importing an engine, loading a model or a checkpoint."""
    train: float = 7200.0
    """An update, a copy of the weights, a checkpoint: the trainer does one thing at a time."""
    gradients: float = 300.0
    """A loaned machine computes a bounded number of tokens, or sends its sums to the trainer."""
    release: float = 60.0
    """A loaned machine ends its current computation, which should take a few seconds. Its engines may wait for that."""
    join: float = 20.0
    """Until the node of a member joins the cluster."""

    @property
    def trainer_start(self) -> float:
        """The trainer's start, which may wait for an update that an earlier coordinator ordered."""
        return self.start + self.train


class PeerChannel(Protocol):
    """Calls to one peer. Raises the errors of `protocols.errors` only."""

    async def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        """Call `method` and return its result.

        Raises `PeerGone`, `PeerTimeout` after `timeout` seconds, or what the peer raises.
        """
        ...


class RemoteReplica:
    """A replica, called over a channel."""

    def __init__(self, name: str, channel: PeerChannel, timeouts: CallTimeouts) -> None:
        self.name = name
        self._channel = channel
        self._timeouts = timeouts

    async def release_accelerators(self, term: int, tensor_parallel: int) -> KeptEngines:
        kept: KeptEngines = await self._channel.call(self._timeouts.load, "release_accelerators", term, tensor_parallel)
        return kept

    async def switch_layout(self, term: int, tensor_parallel: int) -> KeptEngines:
        kept: KeptEngines = await self._channel.call(self._timeouts.start, "switch_layout", term, tensor_parallel)
        return kept

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        # KV is checked and copied before the call returns, as long as weights may take.
        takes_kv = any(request.kv_file is not None for request in requests)
        timeout = self._timeouts.load if takes_kv else self._timeouts.command
        await self._channel.call(timeout, "submit", term, tuple(requests))

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        await self._channel.call(self._timeouts.command, "abort", term, dict(attempts))

    async def export_kv(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> KvExport:
        receipt: KvExport = await self._channel.call(self._timeouts.load, "export_kv", term, dict(attempts))
        return receipt

    async def drop_kv(self, term: int) -> None:
        await self._channel.call(self._timeouts.command, "drop_kv", term)

    async def profile(self, term: int, limits: ProfileLimits) -> EngineProfile:
        profile: EngineProfile = await self._channel.call(
            limits.seconds + self._timeouts.command, "profile", term, limits
        )
        return profile

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        report: ReplicaReport = await self._channel.call(
            wait_seconds + self._timeouts.poll, "poll", term, after, wait_seconds
        )
        return report

    async def load(self, term: int, version: int) -> int:
        loaded: int = await self._channel.call(self._timeouts.load, "load", term, version)
        return loaded


class RemoteWorker:
    """A gradient worker, called over a channel."""

    def __init__(self, name: str, channel: PeerChannel, timeouts: CallTimeouts) -> None:
        self.name = name
        self._channel = channel
        self._timeouts = timeouts

    async def compute(self, term: int, step: int, version: int, groups: Sequence[Group]) -> ComputeReport:
        report: ComputeReport = await self._channel.call(
            self._timeouts.gradients, "compute", term, step, version, tuple(groups)
        )
        return report

    async def deliver(self, term: int, step: int, number: int, inbox: RelayMember) -> ContributionReceipt:
        receipt: ContributionReceipt = await self._channel.call(
            self._timeouts.gradients, "deliver", term, step, number, inbox
        )
        return receipt

    async def release(self, term: int) -> None:
        # The worker ends its current call first.
        await self._channel.call(self._timeouts.release, "release", term)


class RemoteRelay:
    """A relay, called over a channel."""

    def __init__(self, machine: str, channel: PeerChannel, timeouts: CallTimeouts) -> None:
        self.machine = machine
        self._channel = channel
        self._timeouts = timeouts

    async def status(self, term: int) -> RelayStatus:
        status: RelayStatus = await self._channel.call(self._timeouts.heartbeat, "status", term)
        return status

    async def join(self, term: int, chain: Chain) -> None:
        await self._channel.call(self._timeouts.command, "join", term, chain)

    async def probe(self, term: int, member: RelayMember) -> bool:
        reached: bool = await self._channel.call(self._timeouts.heartbeat, "probe", term, member)
        return reached


class RemoteTrainer:
    """The trainer's ranks as one peer.

    Every rank receives every call, in the same order. The first rank's answer counts.
    """

    def __init__(self, ranks: PeerChannel, timeouts: CallTimeouts) -> None:
        self._ranks = ranks
        self._timeouts = timeouts

    async def start(self, term: int) -> TrainerState:
        state: TrainerState = await self._ranks.call(self._timeouts.trainer_start, "start", term)
        return state

    async def contribute(self, term: int, step: int, groups: Sequence[Group]) -> ContributeReport:
        report: ContributeReport = await self._ranks.call(self._timeouts.train, "contribute", term, step, tuple(groups))
        return report

    async def open_gradient_inboxes(self, term: int, count: int) -> tuple[RelayMember, ...]:
        inboxes: tuple[RelayMember, ...] = await self._ranks.call(
            self._timeouts.command, "open_gradient_inboxes", term, count
        )
        return inboxes

    async def accept(self, term: int, receipt: ContributionReceipt, groups: Sequence[Group]) -> ContributeReport:
        report: ContributeReport = await self._ranks.call(self._timeouts.train, "accept", term, receipt, tuple(groups))
        return report

    async def train(self, term: int, step: int, groups: Sequence[Group]) -> TrainReport:
        report: TrainReport = await self._ranks.call(self._timeouts.train, "train", term, step, tuple(groups))
        return report

    async def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        report: PublishReport = await self._ranks.call(self._timeouts.train, "publish", term, version, step, chain)
        return report

    async def checkpoint(self, term: int, step: int, coordinator_snapshot: str) -> str:
        name: str = await self._ranks.call(self._timeouts.train, "checkpoint", term, step, coordinator_snapshot)
        return name

    async def export(self, term: int) -> str:
        path: str = await self._ranks.call(self._timeouts.train, "export", term)
        return path

    async def save_model(self, term: int, step: int) -> tuple[int, ...]:
        steps: tuple[int, ...] = await self._ranks.call(self._timeouts.train, "save_model", term, step)
        return steps

    async def retain_models(self, term: int, keep: Sequence[int] | None) -> tuple[int, ...]:
        kept = None if keep is None else tuple(keep)
        steps: tuple[int, ...] = await self._ranks.call(self._timeouts.train, "retain_models", term, kept)
        return steps

    async def export_best(self, term: int, step: int) -> str:
        path: str = await self._ranks.call(self._timeouts.train, "export_best", term, step)
        return path
