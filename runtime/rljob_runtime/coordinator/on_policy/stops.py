"""Stops: end responses on their replicas inside a round, and receive all that the replicas made of them.

A look stops the machines that it loans, and those that switch their layout. An interruption stops all. The responses
keep their tokens and wait for another launch: those of a loaned machine anywhere, those of a machine that switches on
its new replicas.

A machine that switches may write gigabytes of keys and values first. It stops in the background, so that the tokens,
rewards and races of others do not wait for it. Its event `MachineStopped` follows the last of its polls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from rljob_runtime.coordinator.evaluation.evaluator import Evaluator
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.fleet.machine import RolloutMachine, machine_of
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.on_policy.kv_handover import KvHandovers
from rljob_runtime.coordinator.on_policy.round_responses import RoundResponses
from rljob_runtime.coordinator.on_policy.switcher import Switcher
from rljob_runtime.coordinator.stream_training.loans import LoanManager
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch
from rljob_runtime.scheduling.layouts.look_decision import LookDecision
from rljob_runtime.scheduling.round_plan import Launch


@dataclass(frozen=True)
class MachineStopped:
    """Event: a machine that switches generates nothing any more. `launches`: what it generated. `seconds`: to stop."""

    switch: LayoutSwitch
    launches: Sequence[Launch]
    seconds: float


@dataclass(frozen=True)
class Stops:
    """The stops of one generation stage. `post` receives an event for each machine that has stopped for a switch."""

    fleet: Fleet
    pool: ReplicaPool
    responses: RoundResponses
    stats: GenerationStats
    evaluator: Evaluator
    loans: LoanManager
    switcher: Switcher
    kv: KvHandovers
    observer: EngineObserver
    post: Callable[[MachineStopped], None]
    handle_pending: Callable[[], Awaitable[None]]
    """Handles the events that have been posted."""
    track: Callable[[], Awaitable[None]]
    """Lets the replicas of machines that switch leave the pool."""
    _stopping: set[asyncio.Task[None]] = field(default_factory=set)

    async def everything(self) -> None:
        """Stop the replicas and store everything that they made."""
        # First what was received: replicas may not answer.
        await self.responses.flush()
        await self.evaluator.stop(self.pool)
        if self._stopping:
            await asyncio.wait(self._stopping)
            await self.handle_pending()
        await self._stop(self.responses.running())
        await self.responses.flush()

    async def apply(self, decided: LookDecision) -> None:
        """Stop the responses of machines that a look decided to loan or to switch, and begin loans and switches."""
        if loaned := self.loans.begin(decided.loan):
            self.observer.record_loan()
            await self._stop(self._running_on(loaned))
            await self.evaluator.stop(self.pool, lambda replica: machine_of(replica) in loaned)
        with self._counted():
            for machine, decision in sorted(decided.switches.items()):
                busy = any(self.load(name) for name in self.pool.names() if machine_of(name) == machine)
                if (switch := self.switcher.begin(machine, decision, busy)) is not None:
                    self._stop_in_background(switch)

    def load(self, replica: str) -> int:
        """Return the number of responses of the round that a replica generates."""
        return self.pool.assigned(replica) - self.evaluator.load(replica)

    def _running_on(self, machines: Collection[str]) -> list[Launch]:
        return [launch for launch in self.responses.running() if machine_of(launch.lease.replica) in machines]

    def _stop_in_background(self, switch: LayoutSwitch) -> None:
        """Stop a machine, even beyond the end of the stage: while its replicas write, new weights wait for them."""
        machine, launches = self.switcher.stopping[switch.machine], self._running_on({switch.machine})
        task = self.fleet.run_in_background(self._stop_machine(switch, machine, launches))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _stop_machine(self, switch: LayoutSwitch, machine: RolloutMachine, launches: Sequence[Launch]) -> None:
        clock = asyncio.get_running_loop().time
        since = clock()
        async with machine.changing:
            await self.evaluator.stop(self.pool, lambda replica: machine_of(replica) == machine.name)
            with self._answers_nothing(machine):
                await self.kv.end(machine.name)
                await self.kv.stop(switch, machine, launches)
                await self.pool.collect({launch.lease.replica for launch in launches}, last=True)
        self.post(MachineStopped(switch, launches, clock() - since))

    async def go_on(self, stopped: MachineStopped) -> None:
        """Store what a machine made until it stopped, let its replicas leave the pool, and start its switch."""
        with self._counted():
            self._requeue(stopped.launches)
            self.kv.open(stopped.switch.machine)
            await self.responses.flush()
            machine = self.switcher.stopped(stopped.switch)
            await self.track()
            waiting = [launch.key for launch in stopped.launches if self.responses.waits(launch.key)]
            self.switcher.start(stopped.switch, machine, waiting, stopped.seconds)

    @contextlib.contextmanager
    def _answers_nothing(self, machine: RolloutMachine) -> Iterator[None]:
        """Keep a machine from this stage's pool for the block, and from the pool of an evaluation that begins then."""
        machine.stopping = True
        try:
            with self.pool.stopping(machine.name):
                yield
        finally:
            machine.stopping = False
            self.fleet.notify()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the time of the block: all machines wait for it."""
        clock = asyncio.get_running_loop().time
        since = clock()
        yield
        self.fleet.switch_wait_seconds += clock() - since

    async def _stop(self, stopped: Sequence[Launch]) -> None:
        """Stop these responses and receive all that their replicas made of them. They wait for another launch."""
        await self.pool.abort(stopped)
        await self.pool.collect({launch.lease.replica for launch in stopped}, last=True)
        await self.handle_pending()
        self._requeue(stopped)

    def _requeue(self, stopped: Sequence[Launch]) -> None:
        """Let responses wait for another launch. Their last tokens have come: under another lease they are stale."""
        round_ = self.responses.round
        round_.requeue(launch.key for launch in stopped if round_.lease(launch.key) == launch.lease)
