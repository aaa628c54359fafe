"""Loaned worker: the gradient worker of a loaned machine, as a round's stream sees it."""

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
from rljob_runtime.scheduling.lending.contributions import seconds_of_failed_call
from rljob_runtime.scheduling.lending.gain import LoanMeasurements

T = TypeVar("T")


class LoanOwner(Protocol):
    """The owner of loaned machines; `fleet.Fleet` implements it."""

    def start_loan(self, machine: RolloutMachine) -> None:
        """Loan a machine to its gradient worker."""
        ...

    def mark_machine_lost(self, machine: RolloutMachine, reason: str, detail: object) -> None:
        """Mark this machine as lost, unless it has already left."""
        ...

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> object:
        """Run `work` without waiting for it."""
        ...

    def end_loan(self, machine: RolloutMachine, reload: bool) -> None:
        """End the loan of a machine. With `reload` it generates again in this round."""
        ...


def tokens_of(groups: Iterable[Group]) -> int:
    """Return the number of loss tokens in these groups."""
    return sum(len(scored.response.token_ids) for group in groups for scored in group.responses)


class LoanedWorker:
    """The worker of one machine, for one step. Its calls raise `MachineLeft` if the machine leaves the fleet."""

    def __init__(
        self, machine: RolloutMachine, owner: LoanOwner, term: int, step: int, version: int, measured: LoanMeasurements
    ) -> None:
        assert machine.worker is not None, "only machines with a worker are loaned"
        self.name = machine.name
        self.task: asyncio.Task[None] | None = None
        """Its current work."""
        self._worker: GradientWorker = machine.worker
        self._machine = machine
        self._owner = owner
        self._term = term
        self._step = step
        self._version = version
        self._measured = measured
        self._computing: tuple[float, int] | None = None
        """Start and tokens of the current computation."""
        self._started = False
        self._sleep_seconds = 0.0
        """Duration of putting the engines to sleep, until a computation is measured."""
        self._ended = False
        self._groups: list[Group] = []
        """Groups assigned to it; the first `_summed` of them are summed."""
        self._summed = 0
        self.watcher: asyncio.Task[None] | None = None
        """Waits until the machine leaves."""

    @property
    def usable(self) -> bool:
        """Whether the loan goes on."""
        return not self._ended and not self._machine.left.is_set()

    @property
    def assigned(self) -> tuple[Group, ...]:
        """All groups assigned to it."""
        return tuple(self._groups)

    @property
    def summed(self) -> tuple[Group, ...]:
        """The groups in its sums."""
        return tuple(self._groups[: self._summed])

    def watch(self, on_leave: Callable[[], None]) -> None:
        """Call `on_leave` when the machine leaves the fleet, whatever its worker does then."""

        async def wait() -> None:
            await self._machine.left.wait()
            on_leave()

        self.watcher = asyncio.create_task(wait(), name=f"loan-{self.name}")

    async def compute(self, groups: tuple[Group, ...]) -> None:
        """Have the worker sum these groups too. Raises `PeerError`; then its sums are unusable."""
        self._groups += groups
        first, self._started = not self._started, True
        if first:
            # Drop what an earlier loan of this step left behind.
            await self._call(self._worker.release(self._term))
        clock = asyncio.get_running_loop().time
        self._computing = began, _ = clock(), tokens_of(groups)
        try:
            if first:
                await self._call(self._machine.sleep_engines(self._term))
                self._sleep_seconds = clock() - began
            report = await self._call(self._worker.compute(self._term, self._step, self._version, groups))
        except MachineLeft:
            raise
        except PeerError:
            self.record_slow()
            raise
        finally:
            self._computing = None
        # The engines are assumed to wake as slowly as they fell asleep.
        self._measured.loaned.record(report.tokens, report.seconds + 2 * self._sleep_seconds)
        self._sleep_seconds = 0.0
        self._summed = len(self._groups)

    def record_slow(self) -> None:
        """Record the current computation, which failed or was cancelled, as slow."""
        if self._computing is not None:
            since, tokens = self._computing
            waited = asyncio.get_running_loop().time() - since
            self._measured.loaned.record(tokens, seconds_of_failed_call(waited, tokens, self._measured.loaned_token))

    async def deliver(self, number: int, inbox: RelayMember) -> ContributionReceipt:
        """Send its sums to the trainer's gradient inbox. Raises `Refused` if they contain other groups."""
        receipt = await self._call(self._worker.deliver(self._term, self._step, number, inbox))
        if len(receipt.groups) != self._summed or set(receipt.groups) != {group.prompt for group in self.summed}:
            raise Refused(f"{self.name} has summed {len(receipt.groups)} groups; {self._summed} were requested")
        return receipt

    def take_groups(self) -> list[Group]:
        """End the loan; return its groups, which other workers have to compute."""
        self._end_loan(reload=True)
        groups, self._groups, self._summed = self._groups, [], 0
        return groups

    async def close(self) -> None:
        """End the loan. Does not wait for the worker, which may be in a computation."""
        self._end_loan(reload=False)
        tasks = [task for task in (self.task, self.watcher) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end_loan(self, reload: bool) -> None:
        """End the loan at the worker and at the owner, once."""
        if self.usable:
            if self._started:
                self._owner.run_in_background(self._machine.release_worker(self._term))
            self._owner.end_loan(self._machine, reload)
        self._ended = True

    async def _call(self, method: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._machine.run_while_member(method)
        except MachineLeft:
            raise
        except (PeerGone, PeerTimeout) as error:
            self._owner.mark_machine_lost(self._machine, "WorkerLost", error)
            raise
