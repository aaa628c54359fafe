"""A lent machine as a round's stream sees it: its worker's calls, and the groups whose sums it holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from rljob_runtime.coordinator.loan_protocol import GradientWorker, Handover
from rljob_runtime.coordinator.machines import Machine
from rljob_runtime.coordinator.protocols import PeerError, PeerGone, PeerTimeout, Refused, RelayMember
from rljob_runtime.scheduling.loan_gain import Measured
from rljob_runtime.scheduling.trajectory import Group

T = TypeVar("T")
Lose = Callable[[Machine, str, object], None]
"""`Fleet.lose_this`."""


GIVEN_UP_FACTOR = 10.0
"""A call that was given up counts as so many times longer than it was waited for."""


def tokens_of(groups: Iterable[Group]) -> int:
    """Loss tokens in these groups."""
    return sum(len(scored.response.token_ids) for group in groups for scored in group.responses)


class Lane:
    """The worker of one machine, for one step. A call ends with `PeerGone` when the machine leaves the fleet."""

    def __init__(self, machine: Machine, lose: Lose, term: int, step: int, version: int, measured: Measured) -> None:
        assert machine.worker is not None, "only machines with a worker are lent"
        self.name = machine.name
        self.task: asyncio.Task[None] | None = None
        """What it does now."""
        self._farewell: asyncio.Task[None] | None = None
        self._worker: GradientWorker = machine.worker
        self._machine = machine
        self._lose = lose
        self._term = term
        self._step = step
        self._version = version
        self._measured = measured
        self._asked: tuple[float, int] | None = None
        """Since when it computes, and how many tokens."""
        self._begun = False
        self._given_up = False
        self._groups: list[Group] = []
        """Given to it, summed or under way."""
        self._summed = 0

    @property
    def usable(self) -> bool:
        """Whether it is lent still."""
        return not self._given_up and not self._machine.gone.is_set()

    @property
    def given(self) -> tuple[Group, ...]:
        """All groups that are its to sum."""
        return tuple(self._groups)

    @property
    def summed(self) -> tuple[Group, ...]:
        """The groups that its sums are of."""
        return tuple(self._groups[: self._summed])

    async def compute(self, groups: tuple[Group, ...]) -> None:
        """Have it sum these too. Raises the protocol's errors; what it holds is of no use then."""
        self._groups += groups
        if not self._begun:
            # What an earlier loan of this step left there is nobody's any more.
            await self._call(self._worker.release(self._term))
            self._begun = True
        self._asked = asyncio.get_running_loop().time(), tokens_of(groups)
        report = await self._call(self._worker.compute(self._term, self._step, self._version, groups))
        self._asked = None
        self._measured.lent.note(report.tokens, report.seconds)
        self._summed = len(self._groups)

    async def hand_over(self, number: int, desk: RelayMember) -> Handover:
        """Its sums lie at the trainer's desk. Raises `Refused` when they are of other groups than were asked for."""
        handover = await self._call(self._worker.hand_over(self._term, self._step, number, desk))
        if len(handover.groups) != self._summed or set(handover.groups) != {group.prompt for group in self.summed}:
            raise Refused(f"{self.name} has summed {len(handover.groups)} groups; {self._summed} were asked for")
        return handover

    def give_up(self) -> list[Group]:
        """Lent no more: its groups are others' to compute. It is told, but nobody waits until it has heard."""
        if not self._given_up:
            self._given_up = True
            if self._asked is not None:
                # How long it would have taken is unknown; that it is worth a loan must not be believed again soon.
                since, tokens = self._asked
                waited = asyncio.get_running_loop().time() - since
                # One that failed at once was not quick either.
                usual = tokens * (self._measured.lent_token or 0.0)
                self._measured.lent.note(tokens, GIVEN_UP_FACTOR * max(waited, usual))
            self._farewell = asyncio.create_task(self._release(), name=f"release-{self.name}")
        groups, self._groups, self._summed = self._groups, [], 0
        return groups

    async def close(self) -> None:
        """The loan is over. A worker that is in the middle of something forgets it when it is lent again."""
        if self.usable and (self.task is None or self.task.done()):
            await self._release()
        tasks = [task for task in (self.task, self._farewell) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _release(self) -> None:
        if self._begun:
            with contextlib.suppress(PeerError):
                await self._worker.release(self._term)

    async def _call(self, method: Coroutine[Any, Any, T]) -> T:
        call, gone = asyncio.ensure_future(method), asyncio.ensure_future(self._machine.gone.wait())
        try:
            await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            raise PeerGone(f"{self.name} left while its worker was asked")
        except (PeerGone, PeerTimeout) as error:
            self._lose(self._machine, "WorkerLost", error)
            raise
        finally:
            for task in (call, gone):
                task.cancel()
            await asyncio.gather(call, gone, return_exceptions=True)
