"""Stream training, the coordinator's side: finished groups go to the trainer, and to workers on lent machines, while
others still generate (RollPacker, section 4.4). Each has one call under way at a time, of a bounded number of groups,
so that whatever else the trainer is asked (weights for a newcomer, a checkpoint before a suspension) never waits long.
Generation never waits for a call.

Nothing depends on it: what did not come early is computed by the update, and a trainer that fails a call is found lost
by the update. A worker's sums count whole or not at all: when it fails, all its groups go back to those who are left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_runtime.coordinator.lane import Lane, Lose, tokens_of
from rljob_runtime.coordinator.machines import Machine
from rljob_runtime.coordinator.protocols import ContributeReport, PeerError, Refused, RelayMember, Trainer
from rljob_runtime.coordinator.trainer_seat import TrainerLost, TrainerSeat
from rljob_runtime.scheduling.loan_gain import Measured
from rljob_runtime.scheduling.trajectory import Group

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Streamed:
    """What a round's stream came to. `overlap_seconds`: of the trainer beside generation. `lent_machines`: whatever
    became of them. `worker_groups`: groups whose sums came from lent machines and were taken."""

    overlap_seconds: float = 0.0
    lent_machines: int = 0
    worker_groups: int = 0


class Streaming:
    """The stream of one round, of the weights `version`. `most`: groups in a call; 0 hands nothing over. What it
    measures goes to `measured`."""

    def __init__(self, trainer: TrainerSeat, term: int, step: int, version: int, most: int, measured: Measured) -> None:
        self._trainer = trainer
        self._term = term
        self._step = step
        self._version = version
        self._most = most
        self._measured = measured
        self._waiting: list[Group] = []
        self._call: asyncio.Task[None] | None = None
        self._lanes: list[Lane] = []
        self._broken = False
        self._busy: list[tuple[float, float]] = []
        self._worker_groups = 0
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
    def lent(self) -> frozenset[str]:
        """Machines that compute gradients now, and generate nothing."""
        return frozenset(lane.name for lane in self._lanes if lane.usable)

    def lend(self, machines: Iterable[Machine], lose: Lose) -> None:
        """These work beside the trainer from now on. `lose` is told of one whose worker does not answer."""
        for machine in machines:
            self._lanes.append(Lane(machine, lose, self._term, self._step, self._version, self._measured))
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
                self._call_back("it takes much longer than the trainer would")
            self._set_going()
        for task in self._tasks():
            if not task.cancelled():
                task.result()
        await self._collect()
        overlap = sum(min(end, ended) - began for began, end in self._busy if began < ended)
        return Streamed(overlap, len(self._lanes), self._worker_groups)

    def _patience(self) -> float | None:
        """Seconds that workers are waited for when the trainer has nothing to do: twice as long as it would take itself
        for all that they were given."""
        each = self._measured.training.seconds
        if each is None or (self._call is not None and not self._call.done()):
            return None
        return 1.0 + 2 * each * sum(tokens_of(lane.given) for lane in self._lanes)

    async def close(self) -> None:
        """Wait for nothing any more. What others were asked for, they may still do."""
        if self._call is not None:
            self._call.cancel()
            await asyncio.gather(self._call, return_exceptions=True)
        await asyncio.gather(*(lane.close() for lane in self._lanes))

    # --- handing out ---

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._call, *(lane.task for lane in self._lanes)) if task is not None]

    def _set_going(self) -> None:
        """Everybody who is free and has something to do."""
        if self._broken:
            return
        if self._waiting and (self._call is None or self._call.done()):
            self._call = asyncio.create_task(self._hand_over(), name=f"stream-{self._step}")
        for lane in self._lanes:
            if self._waiting and lane.usable and (lane.task is None or lane.task.done()):
                lane.task = asyncio.create_task(self._work(lane), name=f"stream-{self._step}-{lane.name}")

    def _take(self) -> tuple[Group, ...]:
        """What the next call computes: a fair share, so that the last calls end together."""
        hands = 1 + len(self.lent)
        most = min(self._most, -(-len(self._waiting) // hands))
        groups, self._waiting = tuple(self._waiting[:most]), self._waiting[most:]
        return groups

    async def _hand_over(self) -> None:
        while groups := self._take():
            began = asyncio.get_running_loop().time()
            try:
                report = await self._trainer.call(self._contribute(groups))
            except (TrainerLost, Refused) as error:
                self._break(error)
                return
            self._busy.append((began, asyncio.get_running_loop().time()))
            self._measured.training.note(tokens_of(groups), report.seconds)
            self.computed_tokens += tokens_of(groups)

    async def _work(self, lane: Lane) -> None:
        while lane.usable and (groups := self._take()):
            try:
                await lane.compute(groups)
            except PeerError as error:
                self._give_up(lane, error)
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
        self._set_going()

    def _break(self, error: Exception) -> None:
        """The trainer takes no more: whatever anybody has summed is of no use."""
        log.warning("no more groups of round %d go to the trainer before its update: %s", self._step, error)
        self._broken = True
        self._call_back("the trainer takes no sums")
        self._waiting = []

    def _give_up(self, lane: Lane, reason: object) -> None:
        """Its groups are computed by others."""
        if lane.usable:
            log.warning("round %d: %s computes no more gradients: %s", self._step, lane.name, reason)
        self.computed_tokens -= tokens_of(lane.summed)
        self._waiting += lane.give_up()

    # --- collecting ---

    async def _collect(self) -> None:
        """Bring the workers' sums to the trainer, one after the other: its desk holds one at a time."""
        lanes = [lane for lane in self._lanes if lane.usable and lane.summed]
        if self._broken or not lanes:
            return
        loop = asyncio.get_running_loop()
        try:
            desk = await self._trainer.call(lambda trainer: trainer.open_desk(self._term))
            for number, lane in enumerate(lanes, start=1):
                began = loop.time()
                if await self._bring(lane, number, desk):
                    self._worker_groups += len(lane.summed)
                    self._measured.handover.note(1, loop.time() - began)
        except (TrainerLost, Refused) as error:
            self._break(error)

    async def _bring(self, lane: Lane, number: int, desk: RelayMember) -> bool:
        """One worker's contribution, whole. False when it did not come, or the trainer did not want it."""
        try:
            handover = await lane.hand_over(number, desk)
            await self._trainer.call(lambda trainer: trainer.accept(self._term, handover, lane.summed))
        except PeerError as error:
            log.warning("round %d: what %s has summed is computed again: %s", self._step, lane.name, error)
            return False
        return True
