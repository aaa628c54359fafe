"""Stream training, the coordinator's side: finished groups go to the trainer, and to workers on lent machines, while
others still generate (RollPacker, section 4.4). Each has one call under way at a time, of a bounded number of tokens,
so that whatever else it is asked (weights for a newcomer, a checkpoint before a suspension, the end of a loan) never
waits long. Generation never waits for a call.

Nothing depends on it: what did not come early is computed by the update, and a trainer that fails a call is found lost
by the update. A worker's sums count whole or not at all: when it fails, all its groups go back to those who are left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from rljob_runtime.coordinator.core.errors import TrainerLost
from rljob_runtime.coordinator.fleet.machine import RolloutMachine
from rljob_runtime.coordinator.stream_training.loaned_worker import LoanedWorker, LoanOwner, tokens_of
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.protocols import ContributeReport, PeerError, Refused, RelayMember, Trainer
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.scheduling.lending.gain import LoanMeasurements

log = logging.getLogger(__name__)

CALL_SECONDS = 10.0
"""How long a call is to take, by the speed that was measured."""


@dataclass(frozen=True)
class Streamed:
    """What a round's stream came to. `overlap_seconds`: of the trainer beside generation. `loaned_machines`: whatever
    became of them. `loaned_groups`: groups whose sums came from lent machines and were taken."""

    overlap_seconds: float = 0.0
    loaned_machines: int = 0
    loaned_groups: int = 0


class Streaming:
    """The stream of one round, of the weights `version`. `most`: loss tokens in a call, but a group at least; 0 hands
    nothing over. What it measures goes to `measured`."""

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
        self._lanes: list[LoanedWorker] = []
        self._broken = False
        self._collecting = False
        self._accepting = asyncio.Lock()
        self._busy: list[tuple[float, float]] = []
        self._loaned_groups = 0
        self._brought = self._not_brought = 0
        """Lanes whose sums the trainer took; and whose it could not have, for a reason that holds next time too."""
        self.computed_tokens = 0
        """Loss tokens whose gradients were computed, by the trainer or a worker that is still there."""

    def offer(self, groups: Sequence[Group]) -> None:
        """These groups are final. Returns at once."""
        if not self._most or self._broken:
            return
        self._waiting += groups
        self._set_going()

    # --- lent machines ---

    @property
    def takes_sums(self) -> bool:
        """Whether the trainer would take what a machine sums: it counts only what was computed with weights that it
        has published itself."""
        return not self._broken and self._trainer.published == self._version

    @property
    def lent(self) -> frozenset[str]:
        """Machines that compute gradients now, and generate nothing."""
        return frozenset(lane.name for lane in self._lanes if lane.usable)

    def lend(self, machines: Iterable[RolloutMachine], owner: LoanOwner) -> None:
        """These work beside the trainer from now on. `owner` is told of each loan, of its end, and of one whose worker
        does not answer."""
        for machine in machines:
            owner.lend(machine)
            lane = LoanedWorker(machine, owner, self._term, self._step, self._version, self._measured)
            lane.watch(partial(self._give_up, lane, "its machine left"))
            self._lanes.append(lane)
        self._set_going()

    def recall(self) -> None:
        """The lent machines are needed elsewhere: what they summed is given up."""
        self._call_back("the machine generates again")

    # --- the end ---

    async def finish(self) -> Streamed:
        """Generation has ended. With machines on loan, what is left is shared with them and their sums are brought to
        the trainer; without, nothing more is handed over. Returns when the trainer is free for the update."""
        ended = asyncio.get_running_loop().time()
        if not self.lent:
            self._waiting = []
        while running := [task for task in self._tasks() if not task.done()]:
            done, _ = await asyncio.wait(running, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                for lane in self._lanes:
                    lane.note_slow()
                self._call_back("it takes much longer than the trainer would")
            self._set_going()
        self._check_tasks()
        await self._collect()
        self._check_tasks()
        overlap = sum(min(end, ended) - began for began, end in self._busy if began < ended)
        return Streamed(overlap, len(self._lanes), self._loaned_groups)

    def _patience(self) -> float | None:
        """Seconds that workers are waited for when the trainer has nothing to do."""
        if self._call is not None and not self._call.done():
            return None
        return self._alone()

    def _alone(self) -> float | None:
        """Twice the seconds that the trainer would take for all that workers were given, and a bit; None where it was
        not measured."""
        each = self._measured.training.seconds
        return None if each is None else 1.0 + 2 * each * sum(tokens_of(lane.given) for lane in self._lanes)

    async def close(self) -> None:
        """Wait for nothing any more. What others were asked for, they may still do."""
        # A lane that is lost from now on must not set anybody going.
        self._broken, self._waiting = True, []
        if self._call is not None:
            self._call.cancel()
            await asyncio.gather(self._call, return_exceptions=True)
        await asyncio.gather(*(lane.close() for lane in self._lanes))

    # --- handing out ---

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._call, *(lane.task for lane in self._lanes)) if task is not None]

    def _check_tasks(self) -> None:
        """Raise what is wrong with one that ended."""
        for task in (*self._tasks(), *(lane.watcher for lane in self._lanes if lane.watcher is not None)):
            if task.done() and not task.cancelled():
                task.result()

    def _set_going(self) -> None:
        """Everybody who is free and has something to do."""
        if self._broken or self._collecting:
            return
        # Before another one takes its place.
        self._check_tasks()
        if self._waiting and (self._call is None or self._call.done()):
            self._call = asyncio.create_task(self._hand_over(), name=f"stream-{self._step}")
        for lane in self._lanes:
            if self._waiting and lane.usable and (lane.task is None or lane.task.done()):
                lane.task = asyncio.create_task(self._work(lane), name=f"stream-{self._step}-{lane.name}")

    def _take(self, each: float | None) -> tuple[Group, ...]:
        """What the next call computes at `each` seconds a token: a fair share, so that the last calls end together."""
        sums = list(accumulate(tokens_of([group]) for group in self._waiting))
        if not sums:
            return ()
        most = min(self._most, -(-sums[-1] // (1 + len(self.lent))), CALL_SECONDS / each if each else self._most)
        count = max(1, sum(tokens <= most for tokens in sums))
        groups, self._waiting = tuple(self._waiting[:count]), self._waiting[count:]
        return groups

    async def _hand_over(self) -> None:
        while groups := self._take(self._measured.training.seconds):
            began, beside = asyncio.get_running_loop().time(), self.lent
            try:
                report = await self._trainer.call(self._contribute(groups))
            except (TrainerLost, Refused) as error:
                self._break(error)
                return
            self._busy.append((began, asyncio.get_running_loop().time()))
            rate = self._measured.with_loan if beside or self.lent else self._measured.training
            rate.record(report.tokens, report.seconds)
            self.computed_tokens += tokens_of(groups)

    async def _work(self, lane: LoanedWorker) -> None:
        while lane.usable and (groups := self._take(self._measured.loaned_token)):
            try:
                await lane.compute(groups)
            except PeerError as error:
                self._give_up(lane, error)
                return
            if not lane.usable:
                return
            self.computed_tokens += tokens_of(groups)

    def _contribute(self, groups: tuple[Group, ...]) -> Callable[[Trainer], Coroutine[Any, Any, ContributeReport]]:
        return lambda trainer: trainer.contribute(self._term, self._step, groups)

    def _call_back(self, reason: str) -> None:
        """No machine is lent any more."""
        for lane in self._lanes:
            if lane.task is not None:
                lane.task.cancel()
            self._give_up(lane, reason)

    def _break(self, error: Exception) -> None:
        """The trainer takes no more: whatever anybody has summed is of no use."""
        log.warning("no more groups of round %d go to the trainer before its update: %s", self._step, error)
        self._broken = True
        self._call_back("the trainer takes no sums")
        self._waiting = []

    def _give_up(self, lane: LoanedWorker, reason: object) -> None:
        """Its groups are computed by others."""
        if lane.given:
            log.warning("round %d: %s computes no more gradients: %s", self._step, lane.name, reason)
        self.computed_tokens -= tokens_of(lane.summed)
        self._waiting += lane.give_up()
        self._set_going()

    # --- collecting ---

    async def _collect(self) -> None:
        """Bring the workers' sums to the trainer, all at the same time, for no longer than it would take without
        them."""
        lanes = [lane for lane in self._lanes if lane.usable and lane.summed]
        if self._broken or not lanes:
            return
        self._collecting = True
        loop, bearable = asyncio.get_running_loop(), self._alone()
        began = loop.time()
        try:
            inboxes = await self._trainer.call(lambda trainer: trainer.open_gradient_inboxes(self._term, len(lanes)))
        except (TrainerLost, Refused) as error:
            self._break(error)
            return
        until = None if bearable is None else began + bearable
        for number, (lane, inbox) in enumerate(zip(lanes, inboxes, strict=True), start=1):
            bringing = self._bring(lane, number, inbox, until)
            lane.task = asyncio.create_task(bringing, name=f"bring-{self._step}-{lane.name}")
        await asyncio.wait([lane.task for lane in lanes if lane.task is not None])
        if not self._broken:
            # What could not be brought, however soon that was clear, was not worth its loan. A machine that was lost
            # tells nothing.
            lost = self._not_brought * (bearable or 0.0)
            self._measured.transfer.record(self._brought + self._not_brought, max(loop.time() - began, lost))

    async def _bring(self, lane: LoanedWorker, number: int, inbox: RelayMember, until: float | None) -> None:
        """One worker's contribution, whole or not at all: it does not come in time, or the trainer does not want it."""
        groups = lane.summed
        try:
            async with asyncio.timeout_at(until):
                receipt = await lane.hand_over(number, inbox)
            async with self._accepting:
                await self._trainer.call(lambda trainer: trainer.accept(self._term, receipt, groups))
        except TrainerLost as error:
            self._break(error)
        except (PeerError, TimeoutError) as error:
            self._not_brought += isinstance(error, Refused | TimeoutError)
            reason = str(error) or "they did not come in the time that the trainer takes for them"
            log.warning("round %d: what %s has summed is computed again: %s", self._step, lane.name, reason)
        else:
            self._brought += 1
            self._loaned_groups += len(groups)
