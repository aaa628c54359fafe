"""Stream training, the coordinator's side: finished groups go to the trainer while others still generate (RollPacker,
section 4.4). One call is under way at a time, of a bounded number of groups, so that whatever else the trainer is asked
(weights for a newcomer, a checkpoint before a suspension) never waits long. Generation never waits for a call.

Nothing depends on it: what did not come early is computed by the update, and a trainer that fails a call is found lost
by the update.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rljob_runtime.coordinator.protocols import ContributeReport, Refused, Trainer
from rljob_runtime.coordinator.trainer_seat import TrainerLost, TrainerSeat
from rljob_runtime.scheduling.trajectory import Group

log = logging.getLogger(__name__)


class Streaming:
    """The stream of one round. `most`: groups in a call; 0 hands nothing over."""

    def __init__(self, trainer: TrainerSeat, term: int, step: int, most: int) -> None:
        self._trainer = trainer
        self._term = term
        self._step = step
        self._most = most
        self._waiting: list[Group] = []
        self._call: asyncio.Task[None] | None = None
        self._broken = False
        self._busy: list[tuple[float, float]] = []

    def offer(self, groups: Sequence[Group]) -> None:
        """These groups are final. Returns at once."""
        if not self._most or self._broken:
            return
        self._waiting += groups
        if self._waiting and (self._call is None or self._call.done()):
            self._call = asyncio.create_task(self._hand_over(), name=f"stream-{self._step}")

    async def finish(self) -> float:
        """Generation has ended: hand over no more, and return when the trainer is free for the update. Answers the
        seconds that it computed beside generation."""
        ended = asyncio.get_running_loop().time()
        self._waiting = []
        if self._call is not None:
            await self._call
        return sum(max(0.0, min(end, ended) - began) for began, end in self._busy)

    async def close(self) -> None:
        """Wait for nothing any more. What the trainer was asked for, it may still do."""
        if self._call is not None:
            self._call.cancel()
            await asyncio.gather(self._call, return_exceptions=True)

    def _contribute(self, groups: tuple[Group, ...]) -> Callable[[Trainer], Coroutine[Any, Any, ContributeReport]]:
        return lambda trainer: trainer.contribute(self._term, self._step, groups)

    async def _hand_over(self) -> None:
        while self._waiting:
            groups, self._waiting = tuple(self._waiting[: self._most]), self._waiting[self._most :]
            began = asyncio.get_running_loop().time()
            try:
                await self._trainer.call(self._contribute(groups))
            except (TrainerLost, Refused) as error:
                log.warning("no more groups of round %d go to the trainer before its update: %s", self._step, error)
                self._broken = True
                return
            self._busy.append((began, asyncio.get_running_loop().time()))
