"""Recorded peers: calls and answers between a coordinator and its replicas.

Tests of whole jobs read them, and benchmarks that measure what a migration costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rljob_api.status import Member
from rljob_runtime.protocols import (
    Backend,
    EngineProfile,
    GenerateRequest,
    KeptEngines,
    KvExport,
    MachinePeers,
    ProfileLimits,
    Replica,
    ReplicaReport,
)
from rljob_runtime.protocols.delegating import DelegatingBackend
from rljob_runtime.protocols.trajectory import Lease, TrajectoryKey


@dataclass
class Submitted:
    """`began`, `ended`: when a replica was asked, and when it had answered; None where it has not."""

    replica: str
    began: float
    requests: Sequence[GenerateRequest]
    ended: float | None = None


@dataclass
class Aborted:
    replica: str
    began: float
    attempts: Mapping[TrajectoryKey, int]
    ended: float | None = None


@dataclass
class Loaded:
    """`version`: which it was, where it has answered."""

    replica: str
    began: float
    version: int
    ended: float | None = None


@dataclass
class Told:
    """A poll's answer, at `ended`. Its deltas are new unless an answer before it was lost."""

    replica: str
    ended: float
    report: ReplicaReport


Event = Submitted | Aborted | Loaded | Told


class RecordedReplica:
    """`protocols.Replica` that writes to `history` what the one behind it is asked and says, in this order."""

    def __init__(self, replica: Replica, history: list[Event], clock: Callable[[], float]) -> None:
        self.name = replica.name
        self._replica = replica
        self._history = history
        self._clock = clock

    async def release_accelerators(self, term: int, tensor_parallel: int) -> KeptEngines:
        return await self._replica.release_accelerators(term, tensor_parallel)

    async def switch_layout(self, term: int, tensor_parallel: int) -> KeptEngines:
        return await self._replica.switch_layout(term, tensor_parallel)

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        event = Submitted(self.name, self._clock(), tuple(requests))
        self._history.append(event)
        await self._replica.submit(term, requests)
        event.ended = self._clock()

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        event = Aborted(self.name, self._clock(), dict(attempts))
        self._history.append(event)
        await self._replica.abort(term, attempts)
        event.ended = self._clock()

    async def export_kv(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> KvExport:
        event = Aborted(self.name, self._clock(), dict(attempts))
        self._history.append(event)
        receipt = await self._replica.export_kv(term, attempts)
        event.ended = self._clock()
        return receipt

    async def drop_kv(self, term: int) -> None:
        await self._replica.drop_kv(term)

    async def profile(self, term: int, limits: ProfileLimits) -> EngineProfile:
        return await self._replica.profile(term, limits)

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        report = await self._replica.poll(term, after, wait_seconds)
        self._history.append(Told(self.name, self._clock(), report))
        return report

    async def load(self, term: int, version: int) -> int:
        event = Loaded(self.name, self._clock(), version)
        self._history.append(event)
        event.version = await self._replica.load(term, version)
        event.ended = self._clock()
        return event.version


class RecordedBackend(DelegatingBackend):
    """Another backend, its replicas watched."""

    def __init__(self, backend: Backend, history: list[Event], clock: Callable[[], float]) -> None:
        super().__init__(backend)
        self._history = history
        self._clock = clock

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        found = await super().rollout_machine(term, member, model_files)
        return replace(
            found, replicas=tuple(RecordedReplica(replica, self._history, self._clock) for replica in found.replicas)
        )


@dataclass
class Hop:
    """One response of a migration.

    It names the source, and the destination that continues from the response's token `offset`, after `context` tokens
    in all (with the prompt's). `first`: when the destination's first token came; None where the source ended before.
    """

    key: TrajectoryKey
    source: Lease
    destination: Lease
    offset: int
    context: int
    first: float | None = None


@dataclass
class Move:
    """Responses of `version` that were requested together to go from one replica to another.

    `released`: when the source had released the last of them.
    """

    source: str
    destination: str
    version: int
    asked: float
    hops: list[Hop] = field(default_factory=list)
    released: float | None = None

    @property
    def made(self) -> list[Hop]:
        """Those that went."""
        return [hop for hop in self.hops if hop.first is not None]

    @property
    def context(self) -> int:
        """Tokens that the destination computes again."""
        return sum(hop.context for hop in self.hops)


def moves(history: Iterable[Event]) -> list[Move]:
    """All moves, in their order. Of jobs that lose no replica: what is given to another one there has moved."""
    found: list[Move] = []
    leases: dict[TrajectoryKey, Lease] = {}
    moving: dict[TrajectoryKey, Hop] = {}
    leaving: dict[tuple[TrajectoryKey, str], Move] = {}
    whole: set[TrajectoryKey] = set()
    """The coordinator may not have received it yet."""
    for event in history:
        match event:
            case Submitted():
                for move in _begun(event, leases):
                    found.append(move)
                    for begun in move.hops:
                        if begun.key not in whole:
                            moving[begun.key] = begun
                        leaving[begun.key, begun.source.replica] = move
            case Told():
                for delta in event.report.deltas:
                    lease = Lease(event.replica, delta.attempt)
                    hop = moving.get(delta.key)
                    if hop is not None and hop.destination == lease:
                        hop.first, leases[delta.key] = event.ended, lease
                        del moving[delta.key]
                    if delta.finish_reason is not None and leases.get(delta.key) == lease:
                        whole.add(delta.key)
                        moving.pop(delta.key, None)
            case Aborted():
                for key in event.attempts:
                    if (left := leaving.pop((key, event.replica), None)) is not None and event.ended is not None:
                        left.released = max(left.released or 0.0, event.ended)
    return found


def _begun(event: Submitted, leases: dict[TrajectoryKey, Lease]) -> Iterable[Move]:
    """Yield the migrations that this event requests; record what is launched in `leases`."""
    by_source: dict[str, Move] = {}
    for request in event.requests:
        asked = Lease(event.replica, request.attempt)
        source = leases.setdefault(request.key, asked)
        if source.replica == event.replica:
            leases[request.key] = asked
            continue
        move = by_source.setdefault(
            source.replica, Move(source.replica, event.replica, request.weight_version, event.began)
        )
        offset = len(request.prefix_token_ids)
        context = len(request.prompt_token_ids) + offset
        move.hops.append(Hop(request.key, source, asked, offset, context))
    return by_source.values()
