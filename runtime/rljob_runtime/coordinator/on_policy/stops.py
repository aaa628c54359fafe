"""Stops: end responses on their replicas inside a round, and receive all that the replicas made of them.

A look stops the machines that it loans, and those that switch their layout. An interruption stops all. The responses
keep their tokens and wait for another launch: those of a loaned machine anywhere, those of a machine that switches on
its new replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rljob_runtime.coordinator.evaluation.evaluator import Evaluator
from rljob_runtime.coordinator.fleet.machine import machine_of
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
class Stops:
    """The stops of one generation stage."""

    pool: ReplicaPool
    responses: RoundResponses
    stats: GenerationStats
    evaluator: Evaluator
    loans: LoanManager
    switcher: Switcher
    kv: KvHandovers
    observer: EngineObserver
    handle_pending: Callable[[], Awaitable[None]]
    """Handles the events that have been posted."""
    track: Callable[[], Awaitable[None]]
    """Lets the replicas of machines that switch leave the pool."""

    async def everything(self) -> None:
        """Stop the replicas and store everything that they made."""
        # First what was received: replicas may not answer.
        await self.responses.flush()
        await self.evaluator.stop(self.pool)
        await self._stop(self.responses.running(), self.pool.abort)
        await self.responses.flush()

    async def apply(self, decided: LookDecision) -> None:
        """Stop the responses of machines that a look decided to loan or to switch, and begin loans and switches."""
        if loaned := self.loans.begin(decided.loan):
            self.observer.record_loan()
            moved = [launch for launch in self.responses.running() if machine_of(launch.lease.replica) in loaned]
            await self._stop(moved, self.pool.abort)
            await self.evaluator.stop(self.pool, lambda replica: machine_of(replica) in loaned)
        switches = []
        for machine, decision in sorted(decided.switches.items()):
            busy = any(self.load(name) for name in self.pool.names() if machine_of(name) == machine)
            if (switch := self.switcher.begin(machine, decision, busy)) is not None:
                switches.append(switch)
        if switches:
            await self._switch(switches)

    def load(self, replica: str) -> int:
        """Return the number of responses of the round that a replica generates."""
        return self.pool.assigned(replica) - self.evaluator.load(replica)

    async def _switch(self, switches: Sequence[LayoutSwitch]) -> None:
        """Stop and store all that these machines generate, let their replicas leave the pool, and start the switches.

        The machines stop side by side: the stage waits once."""
        since, machines = asyncio.get_running_loop().time(), {switch.machine for switch in switches}
        await self.evaluator.stop(self.pool, lambda replica: machine_of(replica) in machines)
        await self.kv.end(machines)
        stopped = [launch for launch in self.responses.running() if machine_of(launch.lease.replica) in machines]
        await self._stop(stopped, partial(self.kv.stop, switches))
        await self.responses.flush()
        await self.track()
        waiting = [launch for launch in stopped if self.responses.waits(launch.key)]
        for switch in switches:
            its = [launch.key for launch in waiting if machine_of(launch.lease.replica) == switch.machine]
            self.switcher.start(switch, its, asyncio.get_running_loop().time() - since)

    async def _stop(self, stopped: Sequence[Launch], stop: Callable[[Sequence[Launch]], Awaitable[None]]) -> None:
        """Stop these responses and receive all that their replicas made of them. They wait for another launch.

        They keep their leases until then: under another one their tokens would be stale. `stop`: how replicas stop
        them."""
        await stop(stopped)
        before = self.stats.tokens
        await self.pool.collect({launch.lease.replica for launch in stopped})
        await self.handle_pending()
        self.stats.recovered_tokens += self.stats.tokens - before
        round_ = self.responses.round
        round_.requeue(launch.key for launch in stopped if round_.lease(launch.key) == launch.lease)
