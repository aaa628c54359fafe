"""Network: simulated processes and messages, and the effect of faults on them.

A message may be lost, duplicated, late, or delayed until its receiver continues. A caller receives `PeerGone` from a
machine that answers for its dead process, and nothing from a machine that is cut off. A caller that gives up does not
stop the other side: its request may still take effect.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

from rljob_runtime.protocols import PeerGone, PeerTimeout
from rljob_runtime.simulator.core.process_clock import ProcessClock


class FaultKind(StrEnum):
    """Temporary fault of a link or a process."""

    CUT = "cut"
    LOSS = "loss"
    DUPLICATION = "duplication"
    DISORDER = "disorder"
    SLOW = "slow"
    FROZEN = "frozen"
    SKEWED = "skewed"


LOSS_SHARE = 0.3
DUPLICATION_SHARE = 0.3
DISORDER_SECONDS = 2.0
SLOW_FACTOR = 4.0
SLOW_MESSAGE_SECONDS = 0.05
CLOCK_ERROR = 3.0
"""Seconds that the timers of a skewed clock count as one."""


class FaultState:
    """Faults in force on one thing. The same fault may be in force twice."""

    def __init__(self) -> None:
        self._troubles: Counter[FaultKind] = Counter()

    def begin(self, trouble: FaultKind) -> None:
        self._troubles[trouble] += 1

    def end(self, trouble: FaultKind) -> None:
        self._troubles -= Counter((trouble,))

    def __contains__(self, trouble: FaultKind) -> bool:
        return trouble in self._troubles

    def __bool__(self) -> bool:
        return bool(self._troubles)

    @property
    def rate(self) -> float:
        """Speed of a process under these faults."""
        return 0.0 if FaultKind.FROZEN in self else 1 / SLOW_FACTOR if FaultKind.SLOW in self else 1.0


class Mailbox:
    """Messages that wait for a hanging receiver."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def put(self, open_now: bool, deliver: Callable[[], None]) -> None:
        """Deliver now, or when the receiver continues."""
        if open_now:
            deliver()
        else:
            self._waiting.append(deliver)

    def go_on(self) -> None:
        """Deliver waiting messages in order."""
        waiting, self._waiting = self._waiting, []
        for deliver in waiting:
            deliver()


class CoordinatorIncarnation:
    """One life of a coordinator. Its requests may take effect after its end, but it receives nothing."""

    def __init__(self, condition: FaultState | None = None, api: FaultState | None = None) -> None:
        self.alive = True
        # Not `or`: a state without a fault is empty, and faults come later.
        self.condition = FaultState() if condition is None else condition
        self.api = FaultState() if api is None else api
        """Faults of the link to the API server only."""
        self.mail = Mailbox()

    async def awake(self) -> None:
        """Return when it can receive: after a hang, never after its end."""
        if self.alive and FaultKind.FROZEN not in self.condition:
            return
        going_on = asyncio.Event()
        self.mail.put(False, going_on.set)
        await going_on.wait()


LIFE: ContextVar[CoordinatorIncarnation | None] = ContextVar("life", default=None)
"""The calling coordinator, if several are alive: set in the task that all tasks of a coordinator descend from."""


class Called:
    """A peer that coordinators call, and that knows the caller."""

    def __init__(self) -> None:
        self._life = CoordinatorIncarnation()

    @property
    def life(self) -> CoordinatorIncarnation:
        """The calling coordinator; for other callers the one that should lead."""
        return LIFE.get() or self._life

    @life.setter
    def life(self, life: CoordinatorIncarnation) -> None:
        self._life = life


class Process:
    """A process that can be killed and can hang. `conditions` are its own and its machine's."""

    def __init__(
        self, name: str, peer: Any, conditions: tuple[FaultState, ...] = (), pace: ProcessClock | None = None
    ) -> None:
        self.name = name
        self.peer = peer
        self.alive = True
        self.conditions = conditions
        self.pace = pace or ProcessClock()
        self._silent = False
        self._mail = Mailbox()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._callers: dict[asyncio.Future[Any], None] = {}

    def has_fault(self, trouble: FaultKind) -> bool:
        return any(trouble in condition for condition in self.conditions)

    def refresh(self) -> None:
        """Apply changed conditions: set the clock's rate and deliver waiting messages."""
        rate = min((condition.rate for condition in self.conditions), default=1.0)
        if rate != self.pace.rate:
            self.pace.set(rate)
        self.pace.timers = CLOCK_ERROR if self.has_fault(FaultKind.SKEWED) else 1.0
        if rate > 0:
            self._mail.go_on()

    def kill(self, told_after: float = 0.0) -> None:
        """End the process and its work.

        Its machine notifies waiting callers, unless it is cut off. If the machine ends too, callers are notified after
        `told_after`."""
        self.alive = False
        for task in list(self._tasks):
            task.cancel()
        if told_after:
            self._silent = True
            asyncio.get_running_loop().call_later(told_after, self._told)
        else:
            self._told()

    def _told(self) -> None:
        self._silent = False
        for caller in list(self._callers):
            self.tell_gone(caller)

    def tell_gone(self, caller: asyncio.Future[Any]) -> None:
        """Answer a caller on behalf of a dead process."""
        if not caller.done() and not self._silent and not self.has_fault(FaultKind.CUT):
            caller.set_exception(PeerGone(f"{self.name} is dead"))

    def start(self, method: str, arguments: Sequence[Any], answer: Callable[[asyncio.Task[Any]], None]) -> None:
        """Start what a message requests; `answer` is called at its end. A hanging process starts later."""

        def begin() -> None:
            if self.alive:
                task = asyncio.get_running_loop().create_task(getattr(self.peer, method)(*arguments))
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)
                task.add_done_callback(lambda task: self._mail.put(self.pace.rate > 0, lambda: answer(task)))

        self._mail.put(self.pace.rate > 0, begin)

    def expect(self, caller: asyncio.Future[Any]) -> None:
        """Register a waiting caller."""
        self._callers[caller] = None
        caller.add_done_callback(lambda caller: self._callers.pop(caller, None))


class SimulatedWire:
    """`remote.PeerChannel` from one coordinator to one process."""

    def __init__(
        self, process: Process, rng: random.Random, latency: float, life: CoordinatorIncarnation | None = None
    ) -> None:
        self._process = process
        self._rng = rng
        self._latency = latency
        self._life = life or CoordinatorIncarnation()

    async def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        if not self._life.alive:
            # A killed process sends nothing: calls during its clean-up end here.
            raise asyncio.CancelledError(f"{method}: the coordinator is no more")
        loop, process = asyncio.get_running_loop(), self._process
        caller: asyncio.Future[Any] = loop.create_future()
        timer = loop.call_later(timeout, self._time_out, caller, f"{process.name}: {method} took more than {timeout} s")
        process.expect(caller)

        def arrive() -> None:
            if process.alive:
                process.start(method, arguments, reply)
            else:
                process.tell_gone(caller)

        def reply(task: asyncio.Task[Any]) -> None:
            if not task.cancelled():
                task.exception()  # Seen, even when the answer is lost.
                self._send(lambda: self._hear(caller, task))

        self._send(arrive)
        try:
            return await caller
        finally:
            timer.cancel()

    def _send(self, deliver: Callable[[], None]) -> None:
        """Send a message, possibly several copies."""
        if not self._life.alive:
            return
        troubled = [condition for condition in (*self._process.conditions, self._life.condition) if condition]
        for seconds in self._ways(troubled) if troubled else (self._latency * self._rng.uniform(0.5, 1.5),):
            asyncio.get_running_loop().call_later(seconds, deliver)

    def _ways(self, troubled: Sequence[FaultState]) -> list[float]:
        """Return the delay of each copy of a message; empty for a lost one."""

        def has(trouble: FaultKind) -> bool:
            return any(trouble in condition for condition in troubled)

        if has(FaultKind.CUT) or (has(FaultKind.LOSS) and self._rng.random() < LOSS_SHARE):
            return []
        copies = 2 if has(FaultKind.DUPLICATION) and self._rng.random() < DUPLICATION_SHARE else 1
        slow = SLOW_MESSAGE_SECONDS if has(FaultKind.SLOW) else 0.0
        most = DISORDER_SECONDS if has(FaultKind.DISORDER) or copies > 1 else 0.0
        return [
            slow + self._latency * self._rng.uniform(0.5, 1.5) + self._rng.uniform(0.0, most) for _ in range(copies)
        ]

    def _hear(self, caller: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
        def settle() -> None:
            if caller.done() or not self._life.alive:
                return
            error = task.exception()
            if error is not None:
                caller.set_exception(error)
            else:
                caller.set_result(task.result())

        self._life.mail.put(FaultKind.FROZEN not in self._life.condition, settle)

    def _time_out(self, caller: asyncio.Future[Any], message: str) -> None:
        if not caller.done() and self._life.alive:
            caller.set_exception(PeerTimeout(message))
