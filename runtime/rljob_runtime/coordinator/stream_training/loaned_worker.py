"""A lent machine as a round's stream sees it: its worker's calls, and the groups whose sums it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from rljob_runtime.coordinator.fleet.machine import MachineLeft, RolloutMachine
from rljob_runtime.protocols import (
    ContributionReceipt,
    GradientWorker,
    PeerError,
    PeerGone,
    PeerTimeout,
    Refused,
    RelayMember,
)
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.scheduling.lending.gain import LoanMeasurements

T = TypeVar("T")


class LoanOwner(Protocol):
    """Whose machines they are: `fleet.Fleet`."""

    def lend(self, machine: RolloutMachine) -> None:
        """Its worker is about to be asked."""
        ...

    def lose_this(self, machine: RolloutMachine, reason: str, detail: object) -> None:
        """A call to it failed."""
        ...

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Nobody waits for this."""
        ...

    def take_back(self, machine: RolloutMachine, again: bool) -> None:
        """It is lent no more; whether it is to generate again in this round."""
        ...


GIVEN_UP_FACTOR = 10.0
"""A call that failed, or that was not waited for any longer, counts as so many times longer than it was waited for."""


def tokens_of(groups: Iterable[Group]) -> int:
    """Loss tokens in these groups."""
    return sum(len(scored.response.token_ids) for group in groups for scored in group.responses)


class LoanedWorker:
    """The worker of one machine, for one step. A call ends with `MachineLeft` when the machine leaves the fleet."""

    def __init__(
        self, machine: RolloutMachine, owner: LoanOwner, term: int, step: int, version: int, measured: LoanMeasurements
    ) -> None:
        assert machine.worker is not None, "only machines with a worker are lent"
        self.name = machine.name
        self.task: asyncio.Task[None] | None = None
        """What it does now."""
        self._worker: GradientWorker = machine.worker
        self._machine = machine
        self._owner = owner
        self._term = term
        self._step = step
        self._version = version
        self._measured = measured
        self._asked: tuple[float, int] | None = None
        """Since when it computes, and how many tokens."""
        self._begun = False
        self._room_seconds = 0.0
        """What it took to make room, as long as no computation was measured."""
        self._given_up = False
        self._groups: list[Group] = []
        """Given to it, summed or under way."""
        self._summed = 0
        self.watcher: asyncio.Task[None] | None = None
        """Waits for the machine to leave."""

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

    def watch(self, on_leave: Callable[[], None]) -> None:
        """Call this when the machine leaves the fleet, whatever its worker does then."""

        async def wait() -> None:
            await self._machine.gone.wait()
            on_leave()

        self.watcher = asyncio.create_task(wait(), name=f"lane-{self.name}")

    async def compute(self, groups: tuple[Group, ...]) -> None:
        """Have it sum these too. Raises the protocol's errors; what it holds is of no use then."""
        self._groups += groups
        first, self._begun = not self._begun, True
        if first:
            # What an earlier loan of this step left there is nobody's any more.
            await self._call(self._worker.release(self._term))
        clock = asyncio.get_running_loop().time
        self._asked = began, _ = clock(), tokens_of(groups)
        try:
            if first:
                await self._call(self._machine.make_room(self._term))
                self._room_seconds = clock() - began
            report = await self._call(self._worker.compute(self._term, self._step, self._version, groups))
        except MachineLeft:
            raise
        except PeerError:
            self.note_slow()
            raise
        finally:
            self._asked = None
        # The seats are taken to need as long to come back as they needed to make room.
        self._measured.loaned.record(report.tokens, report.seconds + 2 * self._room_seconds)
        self._room_seconds = 0.0
        self._summed = len(self._groups)

    def note_slow(self) -> None:
        """It failed, or it is not waited for any longer. How long it would have taken is unknown; that it is worth a
        loan must not be believed again soon."""
        if self._asked is not None:
            since, tokens = self._asked
            waited = asyncio.get_running_loop().time() - since
            # One that failed at once was not quick either.
            usual = tokens * (self._measured.loaned_token or 0.0)
            self._measured.loaned.record(tokens, GIVEN_UP_FACTOR * max(waited, usual))

    async def hand_over(self, number: int, inbox: RelayMember) -> ContributionReceipt:
        """Its sums lie at the trainer's inbox. Raises `Refused` when they are of other groups than were asked for."""
        receipt = await self._call(self._worker.deliver(self._term, self._step, number, inbox))
        if len(receipt.groups) != self._summed or set(receipt.groups) != {group.prompt for group in self.summed}:
            raise Refused(f"{self.name} has summed {len(receipt.groups)} groups; {self._summed} were asked for")
        return receipt

    def give_up(self) -> list[Group]:
        """Lent no more: its groups are others' to compute."""
        self._part(again=True)
        groups, self._groups, self._summed = self._groups, [], 0
        return groups

    async def close(self) -> None:
        """The loan is over. Nobody waits until the worker has heard: it may be in the middle of something."""
        self._part(again=False)
        tasks = [task for task in (self.task, self.watcher) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _part(self, again: bool) -> None:
        """Have it forget what it was lent for, once."""
        if self.usable:
            if self._begun:
                self._owner.aside(self._machine.end_loan(self._term))
            self._owner.take_back(self._machine, again)
        self._given_up = True

    async def _call(self, method: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._machine.while_here(method)
        except MachineLeft:
            raise
        except (PeerGone, PeerTimeout) as error:
            self._owner.lose_this(self._machine, "WorkerLost", error)
            raise
