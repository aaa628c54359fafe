"""Trainer group: all trainer ranks behind one `Trainer`.

Every command goes to all ranks, and rank 0 answers for them. Groups travel as deliveries (`delivery.py`): they are
packed once, each rank receives only its own rows, and groups whose sums the ranks hold travel without tokens.

The caller decides how a rank is reached: `local_rank.LocalRank` runs one in a thread of its process, the Ray backend
calls an actor. Ranks work in lockstep through collectives, so a rank that refuses or dies leaves the others waiting.
The first error ends the call, and the caller replaces the group. The coordinator imports this module, so it does not
import torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rljob_runtime.protocols import (
    Chain,
    ContributeReport,
    ContributionReceipt,
    FunctionFailed,
    PublishReport,
    Refused,
    RelayMember,
    TrainerState,
    TrainReport,
)
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.training.batch.delivery import Delivery, Progress, Shares, plan_accept, plan_contribute, plan_train
from rljob_runtime.training.batch.rows import scored_group


@dataclass(frozen=True)
class _Payload:
    """The groups of a command.

    `plan` is a function of `delivery`. `refused` is the start of the error message for groups that cannot be trained
    on.
    """

    plan: Callable[[Progress, int, Sequence[Group], int], tuple[Delivery, list[Shares]]]
    term: int
    step: int
    groups: Sequence[Group]
    refused: str


class RankHandle(Protocol):
    """A `TrainerRank`, local or remote."""

    host: str
    """Address at which other ranks reach it."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Run a method of the rank.

        Calls run one at a time, in their order. Raises the protocol's errors.
        """
        ...

    async def put(self, value: Any) -> Any:
        """Serialise `value` once and return a reference that any rank accepts as an argument.

        Raises the protocol's errors.
        """
        ...


class TrainerGroup:
    """Implements `rljob_runtime.protocols.Trainer` over ranks 0, 1, … in this order."""

    def __init__(self, ranks: Sequence[RankHandle]):
        if not ranks:
            raise ValueError("a trainer has at least one rank")
        self._ranks = tuple(ranks)
        # Commands with large arguments can overtake each other on the way to one rank but not to another. Ranks that
        # meet in different collectives wait forever.
        self._one_at_a_time = asyncio.Lock()
        self._command: asyncio.Task[Any] | None = None

    async def start(self, term: int) -> TrainerState:
        """Connect the ranks and load the model or the newest complete checkpoint."""
        host, port = self._ranks[0].host, 0
        if len(self._ranks) > 1:
            port = await self._ranks[0].call("rendezvous", term, host)
        state: TrainerState = await self._call_all("start", term, host, port)
        return state

    async def contribute(self, term: int, step: int, groups: Sequence[Group]) -> ContributeReport:
        """Compute gradients of complete groups on all ranks together."""
        payload = _Payload(plan_contribute, term, step, groups, f"step {step} cannot accept early groups")
        report: ContributeReport = await self._call_all("contribute", term, step, payload=payload)
        return report

    async def open_gradient_inboxes(self, term: int, count: int) -> tuple[RelayMember, ...]:
        """Open the inboxes of rank 0."""
        inboxes: tuple[RelayMember, ...] = await self._call_all("open_gradient_inboxes", term, count)
        return inboxes

    async def accept(self, term: int, receipt: ContributionReceipt, groups: Sequence[Group]) -> ContributeReport:
        """Read the contribution on rank 0 and distribute its shards."""
        payload = _Payload(
            plan_accept, term, receipt.step, groups, f"a contribution to step {receipt.step} is not accepted"
        )
        report: ContributeReport = await self._call_all("accept", term, receipt, payload=payload)
        return report

    async def train(self, term: int, step: int, groups: Sequence[Group]) -> TrainReport:
        """Run one update on all ranks."""
        payload = _Payload(plan_train, term, step, groups, f"step {step} cannot be trained")
        report: TrainReport = await self._call_all("train", term, step, payload=payload)
        return report

    async def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        """Gather the weights on rank 0, which sends them."""
        report: PublishReport = await self._call_all("publish", term, version, step, chain)
        return report

    async def checkpoint(self, term: int, step: int, coordinator_snapshot: str) -> str:
        """Write a checkpoint of the group."""
        name: str = await self._call_all("checkpoint", term, step, coordinator_snapshot)
        return name

    async def export(self, term: int) -> str:
        """Write the final model."""
        path: str = await self._call_all("export", term)
        return path

    async def save_model(self, term: int, step: int) -> tuple[int, ...]:
        """Write the weights of a step as a model."""
        steps: tuple[int, ...] = await self._call_all("save_model", term, step)
        return steps

    async def retain_models(self, term: int, keep: Sequence[int] | None) -> tuple[int, ...]:
        """Delete models."""
        steps: tuple[int, ...] = await self._call_all("retain_models", term, keep)
        return steps

    async def export_best(self, term: int, step: int) -> str:
        """Make a model the best one."""
        path: str = await self._call_all("export_best", term, step)
        return path

    async def _call_all(self, method: str, *arguments: Any, payload: _Payload | None = None) -> Any:
        await self._one_at_a_time.acquire()
        # The ranks finish the command of a cancelled caller. The next command waits for them.
        self._command = asyncio.create_task(self._run(method, arguments, payload))
        self._command.add_done_callback(_mark_retrieved)
        return await asyncio.shield(self._command)

    async def _run(self, method: str, arguments: tuple[Any, ...], payload: _Payload | None) -> Any:
        """Run a command on all ranks, then release the lock that the caller acquired.

        The command ends when all ranks have answered, or when one refuses or dies.
        """
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
        """Return the arguments of each rank that carry the groups."""
        first = self._ranks[0]
        progress: Progress = await first.call("progress", payload.term)
        try:
            if progress.rules.advantages.function is not None:
                progress = await self._with_own_advantages(progress, payload)
            # Planning a step of a million tokens takes a fraction of a second, so a thread does it.
            delivery, shares = await asyncio.to_thread(
                payload.plan, progress, payload.step, payload.groups, len(self._ranks)
            )
        except FunctionFailed as error:
            raise FunctionFailed(f"{payload.refused}: {error}") from error
        except ValueError as error:
            raise Refused(f"{payload.refused}: {error}") from error
        shared = await first.put(delivery)
        own = await asyncio.gather(*(rank.put(rows) for rank, rows in zip(self._ranks, shares, strict=False)))
        return [(shared, rows) for rows in own] or [(shared,) for _ in self._ranks]

    async def _with_own_advantages(self, progress: Progress, payload: _Payload) -> Progress:
        """Add the advantages of the payload's groups by the user's function.

        It runs on a rank: the coordinator runs no code of the user.
        """
        scored = [scored_group(group, progress.rules.advantages) for group in payload.groups]
        found = await self._ranks[0].call("advantages", payload.term, scored)
        return replace(progress, advantages=dict(zip((group.prompt for group in payload.groups), found, strict=True)))


def _mark_retrieved(command: asyncio.Task[Any]) -> None:
    """Mark an error as seen: asyncio prints a traceback for one whose caller was cancelled."""
    if not command.cancelled():
        command.exception()
