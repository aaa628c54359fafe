"""Simulated gateway: how runners reach the coordinator.

The gateway is in the coordinator's pod, and passes calls to the coordinator that has the store. A call runs with that
coordinator and ends with it. A call or its answer may be lost, late, or wait until its receiver continues. So a call
that failed may have had its effect, as on a connection that breaks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rljob_runtime.coordinator.episodes.book import EpisodeBook
from rljob_runtime.protocols.environments import Assignment, EpisodeReport, ToolCall
from rljob_runtime.protocols.errors import PeerGone, PeerTimeout
from rljob_runtime.protocols.turns import (
    COORDINATOR_AWAY,
    AttemptEnded,
    EpisodeAttempt,
    RecordedTurn,
    StoredTurn,
    TurnCall,
    TurnRefused,
)
from rljob_runtime.simulator.core.network import (
    DISORDER_SECONDS,
    LOSS_SHARE,
    SLOW_MESSAGE_SECONDS,
    CoordinatorIncarnation,
    FaultKind,
    FaultState,
)
from rljob_runtime.simulator.core.process_clock import Event, first_of

T = TypeVar("T")

STILL_SECONDS = 0.25
"""Time between two looks at a process that hangs."""
CUT_SECONDS = 2.0
"""Time after which a caller gives up a connection on which nothing passes."""
_ANSWERS = (*COORDINATOR_AWAY, AttemptEnded, TurnRefused)
"""Errors that a call may raise."""


@dataclass
class _Served:
    """The coordinator that is served, its calls, and the context of its tasks."""

    life: CoordinatorIncarnation
    book: EpisodeBook
    context: Context
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    calls: set[asyncio.Task[Any]] = field(default_factory=set)


class SimulatedGateway:
    """The gateway of a run, over all of its coordinators. `fail` receives an error that no call may raise."""

    def __init__(self, seed: int, latency: float, fail: Callable[[BaseException], None]) -> None:
        self.condition = FaultState()
        self._absent = 0
        """Number of crashes in force."""
        self._changed = Event()
        self._rng = random.Random(f"{seed}/gateway")
        self._latency = latency
        self._fail = fail
        self._served: _Served | None = None

    def open(self, life: CoordinatorIncarnation, book: EpisodeBook) -> None:
        """Serve a coordinator, whose task this is: its prompts are open."""
        if self._served is None or self._served.life is not life:
            self._served = _Served(life, book, copy_context())

    def close(self, life: CoordinatorIncarnation) -> None:
        """End the calls of a coordinator: it is no more."""
        served = self._served
        if served is not None and served.life is life:
            self._served = None
            served.gone.set()
            for call in list(served.calls):
                call.cancel()

    def refresh(self) -> None:
        """Apply a changed condition."""
        self._changed.fire()

    def come_back(self) -> None:
        """End a crash."""
        self._absent -= 1

    def crash(self) -> None:
        """Break all connections. What was asked goes on at the coordinator."""
        self._absent += 1
        served = self._served
        if served is not None:
            served.gone.set()
            served.gone = asyncio.Event()

    async def call(self, caller: FaultState, ask: Callable[[EpisodeBook], Coroutine[Any, Any, T]]) -> T:
        """Return the coordinator's answer. Raises what the coordinator raises, `PeerGone` and `PeerTimeout`."""
        await self._way(caller)
        served = self._served
        if served is None or self._absent:
            raise PeerGone("no coordinator serves the gateway")
        gone, task = served.gone, asyncio.get_running_loop().create_task(ask(served.book), context=served.context)
        served.calls.add(task)
        task.add_done_callback(served.calls.discard)
        task.add_done_callback(self._check)
        broken = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait({task, broken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            broken.cancel()
        if not task.done() or task.cancelled():
            raise PeerGone("the connection broke")
        await self._way(caller)
        return task.result()

    async def _way(self, caller: FaultState) -> None:
        """Wait while a message is under way. Raises `COORDINATOR_AWAY` if it does not arrive."""
        await asyncio.sleep(self._latency * self._rng.uniform(0.5, 1.5))
        while self._has_fault(caller, FaultKind.FROZEN):
            await first_of((self._changed,), STILL_SECONDS)
        if self._has_fault(caller, FaultKind.CUT):
            await asyncio.sleep(CUT_SECONDS)
            raise PeerTimeout("nothing passes")
        if self._has_fault(caller, FaultKind.LOSS) and self._rng.random() < LOSS_SHARE:
            raise PeerGone("the connection broke")
        if self._has_fault(caller, FaultKind.SLOW):
            await asyncio.sleep(SLOW_MESSAGE_SECONDS)
        if self._has_fault(caller, FaultKind.DISORDER):
            await asyncio.sleep(self._rng.uniform(0.0, DISORDER_SECONDS))

    def _has_fault(self, caller: FaultState, trouble: FaultKind) -> bool:
        conditions = [caller, self.condition]
        if self._served is not None:
            conditions.append(self._served.life.condition)
        return any(trouble in condition for condition in conditions)

    def _check(self, call: asyncio.Task[Any]) -> None:
        if not call.cancelled() and (error := call.exception()) is not None and not isinstance(error, _ANSWERS):
            self._fail(error)


class RunnerDoor:
    """What the gateway offers to one runner, whose `condition` is that of its process."""

    def __init__(self, gateway: SimulatedGateway, condition: FaultState) -> None:
        self._gateway = gateway
        self._condition = condition
        self.turns = self.environments = self

    async def turn(self, call: TurnCall) -> RecordedTurn:
        """See `protocols.turns.Turns.turn`."""
        return await self._gateway.call(self._condition, lambda book: book.turns.turn(call))

    async def history(self, episode: EpisodeAttempt, newest: bool = False) -> Sequence[StoredTurn]:
        """See `protocols.turns.Turns.history`."""
        return await self._gateway.call(self._condition, lambda book: book.turns.history(episode, newest))

    async def lease(
        self, environment: str, runner: str, wait_seconds: float, most: int = 1, journals: bool = False
    ) -> Sequence[Assignment]:
        """See `protocols.environments.Environments.lease`."""
        return await self._gateway.call(
            self._condition, lambda book: book.runners.lease(environment, runner, wait_seconds, most, journals)
        )

    async def called(self, environment: str, runner: str, episode: EpisodeAttempt, call: ToolCall) -> None:
        """See `protocols.environments.Environments.called`."""
        await self._gateway.call(self._condition, lambda book: book.runners.called(environment, runner, episode, call))

    async def heartbeat(
        self, environment: str, runner: str, episodes: Sequence[EpisodeAttempt]
    ) -> Sequence[EpisodeAttempt]:
        """See `protocols.environments.Environments.heartbeat`."""
        return await self._gateway.call(
            self._condition, lambda book: book.runners.heartbeat(environment, runner, episodes)
        )

    async def done(self, environment: str, runner: str, episode: EpisodeAttempt, report: EpisodeReport) -> None:
        """See `protocols.environments.Environments.done`."""
        await self._gateway.call(self._condition, lambda book: book.runners.done(environment, runner, episode, report))
