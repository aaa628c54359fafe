"""The ranks of the trainer as one `Trainer`: every command goes to all of them, rank 0 answers for them.

Groups go as deliveries (`delivery.py`): packed once, each rank's rows to that rank alone, and no tokens of groups whose
sums the ranks hold.

How a rank is reached is the caller's matter: `local_rank.LocalRank` runs one in a thread of its process, the Ray
binding calls an actor. Ranks work in lockstep through collectives, so one that refuses or dies leaves the others
waiting; the first error ends the call, and it is the caller who replaces the group. The coordinator imports this
module: no torch here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_runtime.protocols import (
    Chain,
    ContributeReport,
    ContributionReceipt,
    PublishReport,
    Refused,
    RelayMember,
    TrainerState,
    TrainReport,
)
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.training.batch.delivery import Delivery, Progress, Shares, for_accept, for_contribute, for_train


@dataclass(frozen=True)
class _Payload:
    """Groups that a command brings. `plan`: one of `delivery`'s functions. `refused`: what a message begins with that
    says what is wrong with them."""

    plan: Callable[[Progress, int, Sequence[Group], int], tuple[Delivery, list[Shares]]]
    term: int
    step: int
    groups: Sequence[Group]
    refused: str


class RankHandle(Protocol):
    """A `TrainerRank`, wherever it is."""

    host: str
    """Where other ranks reach it."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Run a method of the rank; one at a time, in the order of the calls. Raises the protocol's errors."""
        ...

    async def put(self, value: Any) -> Any:
        """What any rank takes as an argument for `value`, which is packed now and once. Raises the protocol's
        errors."""
        ...


class TrainerGroup:
    """Implements `rljob_runtime.protocols.Trainer` over ranks 0, 1, … in this order."""

    def __init__(self, ranks: Sequence[RankHandle]):
        if not ranks:
            raise ValueError("a trainer has at least one rank")
        self._ranks = tuple(ranks)
        # A command with large arguments may overtake or be overtaken on its way to one rank and not to another, and
        # ranks that meet in different collectives wait for ever.
        self._one_at_a_time = asyncio.Lock()
        self._command: asyncio.Task[Any] | None = None

    async def start(self, term: int) -> TrainerState:
        """Bring the ranks together and load the model or the newest whole checkpoint."""
        host, port = self._ranks[0].host, 0
        if len(self._ranks) > 1:
            port = await self._ranks[0].call("rendezvous", term, host)
        state: TrainerState = await self._all("start", term, host, port)
        return state

    async def contribute(self, term: int, step: int, groups: Sequence[Group]) -> ContributeReport:
        """Gradients of finished groups, by all ranks together."""
        payload = _Payload(for_contribute, term, step, groups, f"step {step} cannot take groups early")
        report: ContributeReport = await self._all("contribute", term, step, payload=payload)
        return report

    async def open_gradient_inboxes(self, term: int, count: int) -> tuple[RelayMember, ...]:
        """Rank 0's."""
        inboxes: tuple[RelayMember, ...] = await self._all("open_gradient_inboxes", term, count)
        return inboxes

    async def accept(self, term: int, handover: ContributionReceipt, groups: Sequence[Group]) -> ContributeReport:
        """Rank 0 reads, all keep their shards."""
        payload = _Payload(
            for_accept, term, handover.step, groups, f"a contribution to step {handover.step} is not taken"
        )
        report: ContributeReport = await self._all("accept", term, handover, payload=payload)
        return report

    async def train(self, term: int, step: int, groups: Sequence[Group]) -> TrainReport:
        """One update, on all ranks."""
        payload = _Payload(for_train, term, step, groups, f"step {step} cannot be trained")
        report: TrainReport = await self._all("train", term, step, payload=payload)
        return report

    async def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        """Gather the weights on rank 0, which ships them."""
        report: PublishReport = await self._all("publish", term, version, step, chain)
        return report

    async def checkpoint(self, term: int, step: int, standing: str) -> str:
        """Write a checkpoint of the whole group."""
        name: str = await self._all("checkpoint", term, step, standing)
        return name

    async def export(self, term: int) -> str:
        """Write the final model."""
        path: str = await self._all("export", term)
        return path

    async def _all(self, method: str, *arguments: Any, payload: _Payload | None = None) -> Any:
        await self._one_at_a_time.acquire()
        # A caller that gives up leaves the ranks in the command: the next one waits for them all.
        self._command = asyncio.create_task(self._run(method, arguments, payload))
        return await asyncio.shield(self._command)

    async def _run(self, method: str, arguments: tuple[Any, ...], payload: _Payload | None) -> Any:
        """Holds the lock that its caller took until all ranks have answered, or one has refused or died."""
        tasks: list[asyncio.Future[Any]] = []
        try:
            packed = await self._packed(payload) if payload else [() for _ in self._ranks]
            tasks += [
                asyncio.ensure_future(rank.call(method, *arguments, *more))
                for rank, more in zip(self._ranks, packed, strict=True)
            ]
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            self._one_at_a_time.release()
        return answers[0]

    async def _packed(self, payload: _Payload) -> list[tuple[Any, ...]]:
        """The arguments that bring it, for each rank."""
        first = self._ranks[0]
        progress: Progress = await first.call("progress", payload.term)
        try:
            # In a thread: a step of a million tokens takes a part of a second.
            delivery, shares = await asyncio.to_thread(
                payload.plan, progress, payload.step, payload.groups, len(self._ranks)
            )
        except ValueError as error:
            raise Refused(f"{payload.refused}: {error}") from error
        told = await first.put(delivery)
        own = await asyncio.gather(*(rank.put(rows) for rank, rows in zip(self._ranks, shares, strict=False)))
        return [(told, rows) for rows in own] or [(told,) for _ in self._ranks]
