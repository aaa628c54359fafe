"""Stream: sends complete groups to the trainer and to loaned workers while others still generate (RollPacker §4.4).

The trainer and each worker have one call at a time, with a bounded number of tokens. So other commands (weights for a
newcomer, a checkpoint before a suspension, the end of a loan) do not wait long, and generation never waits for a call.

The round does not depend on the stream. The update computes what did not arrive early, and notices a lost trainer. The
sums of a worker count completely or not at all: if it fails, the others compute its groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rljob_runtime.coordinator.core.errors import TrainerLost
from rljob_runtime.coordinator.fleet.machine import RolloutMachine
from rljob_runtime.coordinator.reporting.timeline import TRAINER
from rljob_runtime.coordinator.stream_training.loaned_worker import LoanedWorker, LoanOwner, tokens_of
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.protocols import ContributeReport, PeerError, Refused, RelayMember, Trainer
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.scheduling.lending.contributions import groups_for_call, patience
from rljob_runtime.scheduling.lending.gain import LoanMeasurements

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Streamed:
    """The result of a round's stream.

    `overlap_seconds`: time in which the trainer computed while replicas generated. `loaned_machines`: all of them,
    whatever their outcome. `loaned_groups`: groups whose sums the trainer accepted from loaned machines.
    """

    overlap_seconds: float = 0.0
    loaned_machines: int = 0
    loaned_groups: int = 0


class Streaming:
    """The stream of one round, generated with the weights `version`.

    `most`: loss tokens in a call, but one group at least; 0 disables the stream. Speeds are recorded in `measured`.
    """

    def __init__(
        self, trainer: TrainerClient, term: int, step: int, version: int, most: int, measured: LoanMeasurements
    ) -> None:
        self._trainer = trainer
        self._term = term
        self._step = step
        self._version = version
        self._most = most
        self._measured = measured
        self._waiting: list[Group] = []
        self._call: asyncio.Task[None] | None = None
        self._workers: list[LoanedWorker] = []
        self._broken = False
        self._collecting = False
        self._accepting = asyncio.Lock()
        self._busy: list[tuple[float, float]] = []
        self._loaned_groups = 0
        self._accepted = self._not_accepted = 0
        """Workers whose sums the trainer accepted, and workers whose sums failed for a reason that may recur."""
        self._computed_tokens = 0
        self._under_way: tuple[float, int] | None = None
        """When the trainer's call began, and its loss tokens."""

    def offer(self, groups: Sequence[Group]) -> None:
        """Add complete groups. Returns immediately."""
        if not self._most or self._broken:
            return
        self._waiting += groups
        self._start_calls()

    @property
    def broken(self) -> bool:
        """Whether the trainer takes no more groups before its update."""
        return self._broken

    @property
    def computed_tokens(self) -> int:
        """Loss tokens whose gradients the trainer or a usable worker has computed.

        Of the trainer's call under way, they are those of the time that has passed."""
        return self._computed_tokens + self._computed_by_call()

    def _computed_by_call(self) -> int:
        seconds = self._measured.training.seconds
        if self._under_way is None or not seconds:
            return 0
        began, tokens = self._under_way
        return min(tokens, int((asyncio.get_running_loop().time() - began) / seconds))

    # --- loaned machines ---

    @property
    def accepts_contributions(self) -> bool:
        """Whether the trainer would accept a worker's sums: it has published the weights of this round itself."""
        return not self._broken and self._trainer.published_version == self._version

    @property
    def loaned(self) -> frozenset[str]:
        """Machines that compute gradients now, and generate nothing."""
        return frozenset(worker.name for worker in self._workers if worker.usable)

    def start_loans(self, machines: Iterable[RolloutMachine], owner: LoanOwner) -> None:
        """Loan these machines to their workers. `owner` is notified of starts, ends and lost workers."""
        for machine in machines:
            owner.start_loan(machine)
            worker = LoanedWorker(machine, owner, self._term, self._step, self._version, self._measured)
            worker.watch(partial(self._end_loan, worker, "its machine left"))
            self._workers.append(worker)
        self._start_calls()

    def end_loans(self) -> None:
        """End all loans, because the machines are needed to generate. Their sums are dropped."""
        self._cancel_loans("the machine generates again")

    # --- the end of the round ---

    async def finish(self) -> Streamed:
        """Finish the stream after generation has ended; return when the trainer is free for the update.

        With loans, the workers help to compute the waiting groups, and send their sums to the trainer. Without loans,
        the waiting groups are left to the update.
        """
        ended = asyncio.get_running_loop().time()
        if not self.loaned:
            self._waiting = []
        while running := [task for task in self._tasks() if not task.done()]:
            done, _ = await asyncio.wait(running, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                for worker in self._workers:
                    worker.record_slow()
                self._cancel_loans("it takes much longer than the trainer would")
            self._start_calls()
        self._check_tasks()
        await self._collect()
        self._check_tasks()
        overlap = sum(min(end, ended) - began for began, end in self._busy if began < ended)
        return Streamed(overlap, len(self._workers), self._loaned_groups)

    def _patience(self) -> float | None:
        """Return how long an idle trainer waits for the workers; None without a bound."""
        if self._call is not None and not self._call.done():
            return None
        return self._patience_for_workers()

    def _patience_for_workers(self) -> float | None:
        assigned = sum(tokens_of(worker.assigned) for worker in self._workers)
        return patience(assigned, self._measured.training.seconds)

    async def close(self) -> None:
        """Stop waiting. Peers may complete their last command."""
        # A worker that is lost from now on starts no further call.
        self._broken, self._waiting = True, []
        if self._call is not None:
            self._call.cancel()
            await asyncio.gather(self._call, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._workers))

    # --- calls ---

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._call, *(worker.task for worker in self._workers)) if task is not None]

    def _check_tasks(self) -> None:
        """Raise the error of a task that has failed."""
        for task in (*self._tasks(), *(worker.watcher for worker in self._workers if worker.watcher is not None)):
            if task.done() and not task.cancelled():
                task.result()

    def _start_calls(self) -> None:
        """Start a call for the trainer and for each worker that is idle, if groups wait."""
        if self._broken or self._collecting:
            return
        # Before a new task replaces one that has failed.
        self._check_tasks()
        if self._waiting and (self._call is None or self._call.done()):
            self._call = asyncio.create_task(self._contribute_waiting(), name=f"stream-{self._step}")
        for worker in self._workers:
            if self._waiting and worker.usable and (worker.task is None or worker.task.done()):
                worker.task = asyncio.create_task(self._work(worker), name=f"stream-{self._step}-{worker.name}")

    def _next_groups(self, seconds: float | None) -> tuple[Group, ...]:
        """Return the groups of the next call, for a peer that takes `seconds` a token."""
        tokens = [tokens_of([group]) for group in self._waiting]
        count = groups_for_call(tokens, 1 + len(self.loaned), self._most, seconds)
        groups, self._waiting = tuple(self._waiting[:count]), self._waiting[count:]
        return groups

    async def _contribute_waiting(self) -> None:
        while groups := self._next_groups(self._measured.training.seconds):
            began, loaned, tokens = asyncio.get_running_loop().time(), self.loaned, tokens_of(groups)
            self._under_way = began, tokens
            try:
                with self._trainer.timeline.during(TRAINER, "gradients", round=self._step, groups=len(groups)):
                    report = await self._trainer.call(self._contribute(groups))
            except (TrainerLost, Refused) as error:
                self._break(error)
                return
            finally:
                self._under_way = None
            self._busy.append((began, asyncio.get_running_loop().time()))
            rate = self._measured.with_loan if loaned or self.loaned else self._measured.training
            rate.record(report.tokens, report.seconds)
            self._computed_tokens += tokens

    async def _work(self, worker: LoanedWorker) -> None:
        while worker.usable and (groups := self._next_groups(self._measured.loaned_token)):
            try:
                await worker.compute(groups)
            except PeerError as error:
                self._end_loan(worker, error)
                return
            if not worker.usable:
                return
            self._computed_tokens += tokens_of(groups)

    def _contribute(self, groups: tuple[Group, ...]) -> Callable[[Trainer], Coroutine[Any, Any, ContributeReport]]:
        return lambda trainer: trainer.contribute(self._term, self._step, groups)

    def _cancel_loans(self, reason: str) -> None:
        """Cancel the work of all workers and end their loans."""
        for worker in self._workers:
            if worker.task is not None:
                worker.task.cancel()
            self._end_loan(worker, reason)

    def _break(self, error: Exception) -> None:
        """Stop the stream: the trainer accepts no more, so that all sums are useless."""
        log.warning("no more groups of round %d go to the trainer before its update: %s", self._step, error)
        self._broken = True
        self._cancel_loans("the trainer accepts no sums")
        self._waiting = []

    def _end_loan(self, worker: LoanedWorker, reason: object) -> None:
        """End a loan; other peers compute its groups."""
        if worker.assigned:
            log.warning("round %d: %s computes no more gradients: %s", self._step, worker.name, reason)
        self._computed_tokens -= tokens_of(worker.summed)
        self._waiting += worker.take_groups()
        self._start_calls()

    # --- contributions ---

    async def _collect(self) -> None:
        """Have all workers send their sums to the trainer at the same time.

        This may take as long as the trainer would need to compute them.
        """
        workers = [worker for worker in self._workers if worker.usable and worker.summed]
        if self._broken or not workers:
            return
        self._collecting = True
        loop, bound = asyncio.get_running_loop(), self._patience_for_workers()
        began = loop.time()
        try:
            inboxes = await self._trainer.call(lambda trainer: trainer.open_gradient_inboxes(self._term, len(workers)))
        except (TrainerLost, Refused) as error:
            self._break(error)
            return
        until = None if bound is None else began + bound
        for number, (worker, inbox) in enumerate(zip(workers, inboxes, strict=True), start=1):
            sending = self._send_sums(worker, number, inbox, until)
            worker.task = asyncio.create_task(sending, name=f"sums-{self._step}-{worker.name}")
        await asyncio.wait([worker.task for worker in workers if worker.task is not None])
        if not self._broken:
            # A failed transfer was not worth its loan, however early it failed. A lost machine says nothing about that.
            lost = self._not_accepted * (bound or 0.0)
            self._measured.transfer.record(self._accepted + self._not_accepted, max(loop.time() - began, lost))

    async def _send_sums(self, worker: LoanedWorker, number: int, inbox: RelayMember, until: float | None) -> None:
        """Have a worker send its sums, and the trainer accept them, completely or not at all."""
        groups = worker.summed
        try:
            async with asyncio.timeout_at(until):
                receipt = await worker.deliver(number, inbox)
            async with self._accepting:
                await self._trainer.call(lambda trainer: trainer.accept(self._term, receipt, groups))
        except TrainerLost as error:
            self._break(error)
        except (PeerError, TimeoutError) as error:
            self._not_accepted += isinstance(error, Refused | TimeoutError)
            reason = str(error) or "they did not arrive in the time that the trainer needs to compute them"
            log.warning("round %d: the sums of %s are computed again: %s", self._step, worker.name, reason)
        else:
            self._accepted += 1
            self._loaned_groups += len(groups)
