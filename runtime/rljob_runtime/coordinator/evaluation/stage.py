"""Evaluation stage: generates the evaluations that are left when a round's own responses are complete.

It runs during the update, and longer if it has to. The trainer may hold newer weights by then, so that machines can get
those of the evaluation from other relays only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from rljob_runtime.coordinator.core.async_utils import Broken
from rljob_runtime.coordinator.core.errors import TrainerLost
from rljob_runtime.coordinator.evaluation.evaluator import Evaluator
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.inbox import Inbox
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPolled, ReplicaPool
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.protocols import Chain, Replica

JOB_INTERRUPTED = "the job was interrupted, and its weights are replaced"
WEIGHTS_GONE = "no machine holds its weights any more, and the trainer has newer ones"

Regain = Callable[[int], Awaitable[bool]]
"""Brings a version to the machines. Returns False if no source has it any more."""


class EvaluationStage:
    """A stage for a single use. `regain` is called while no machine holds the weights."""

    def __init__(self, context: CoordinatorContext, evaluator: Evaluator, regain: Regain) -> None:
        self._fleet = context.fleet
        self._settings = context.settings
        self._evaluator = evaluator
        self._regain = regain
        self._inbox: Inbox[ReplicaPolled | Broken | None] = Inbox()
        observer, post = EngineObserver(context.fleet.layout_of), self._inbox.post
        self._pool = ReplicaPool(context.fleet, context.term, context.settings, observer, post, self._available)

    async def run(self) -> None:
        """Run until the evaluations under way have ended. They are abandoned if their weights are gone."""
        evaluator = self._evaluator
        evaluator.on_change = lambda: self._inbox.post(None)
        try:
            while (version := evaluator.version) is not None:
                if self._pool.outdated:
                    await self._pool.track(evaluator.void())
                    evaluator.retain(self._pool)
                if not self._pool.names() and not await self._regain(version):
                    await evaluator.abandon(WEIGHTS_GONE)
                    return
                await evaluator.launch(self._pool, dict.fromkeys(self._pool.names(), 0), urgent=True)
                await self._handle_next()
        finally:
            evaluator.on_change = lambda: None
            await self._pool.close()
            drain(self._inbox, evaluator)

    def _available(self) -> dict[str, Replica]:
        machines = [one for one in self._fleet.joined.values() if one.loaded_version == self._evaluator.version]
        free = [one for one in machines if not one.loaned and not one.stopping]
        return {replica.name: replica for machine in free for replica in machine.replicas}

    async def _handle_next(self) -> None:
        """Handle all pending events, after waiting for the first."""
        for event in await self._inbox.next(self._settings.flush):
            if isinstance(event, Broken):
                raise event.error
            if event is not None:
                await self._evaluator.collect(self._pool, event.replica.name, event.report)


def drain(inbox: Inbox[Any], evaluator: Evaluator) -> None:
    """Take the tokens of evaluations from events that a closed stage has not handled: replicas send them once."""
    for event in inbox.drain():
        if isinstance(event, ReplicaPolled):
            evaluator.take(event.replica.name, event.report)


class RegainFromRelays:
    """Brings a version to the machines from relays that hold it, for up to `settings.join_patience` seconds."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._fleet = context.fleet
        self._settings = context.settings
        self._until: float | None = None

    async def __call__(self, version: int) -> bool:
        """Try once. Returns False if no relay has offered it in time."""
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self._settings.join_patience
        if now >= self._until:
            return False
        if any(machine.complete_version == version for machine in self._fleet.joined.values()):
            # The relay that holds it may leave meanwhile.
            with contextlib.suppress(TrainerLost):
                await self._fleet.weights.load_everywhere(version, _no_source)
                self._until = None
            self._fleet.weights.forget()
        return True


async def _no_source(version: int, chain: Chain) -> None:
    raise TrainerLost(f"no relay holds version {version}")
