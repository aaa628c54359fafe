"""Dispatcher: sends responses of `mode: Asynchronous` to replicas, by a launch or by a move.

The store records them first.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection

from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.coordinator.generation.requests import Requests
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.generation.token_receiver import TokenReceiver
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.coordinator.reporting.timeline import MOVES
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols import GenerateRequest, PromptSource
from rljob_runtime.protocols.trajectory import Lease, TrajectoryKey
from rljob_runtime.scheduling.asynchronous.async_groups import GroupTracker
from rljob_runtime.scheduling.asynchronous.repack import Merge
from rljob_runtime.scheduling.round_plan import Launch

log = logging.getLogger(__name__)


class Dispatcher:
    """Launches and moves of one coordinator. `groups` decides what is launched where; costs are counted in `stats`."""

    def __init__(
        self,
        context: CoordinatorContext,
        prompts: PromptSource,
        groups: GroupTracker,
        receiver: TokenReceiver,
        pool: ReplicaPool,
        stats: GenerationStats,
    ) -> None:
        self._store = context.store
        self._has_episodes = bool(context.settings.environments)
        self._requests = Requests(context.settings, prompts, receiver.partials)
        self._flight = groups
        self._receiver = receiver
        self._pool = pool
        self._stats = stats
        self._timeline = context.reporter.timeline

    async def launch(self, launches: Collection[Launch]) -> None:
        """Record the leases and submit each response to the replica of its lease."""
        if not launches:
            return
        by_replica = defaultdict(list)
        for launch in launches:
            version = self._flight.version(launch.key.prompt)
            self._receiver.partials.open(launch.key, launch.lease, version)
            by_replica[launch.lease.replica].append(self._request(launch))
        leases = [(launch.key, launch.lease) for launch in launches]
        await self._store.do(lambda s: s.experience.launched(leases))
        await self._pool.submit(by_replica)

    async def migrate(self, merge: Merge) -> None:
        """Let the destination go on with the source's responses: episodes immediately, others in two phases."""
        if self._has_episodes:
            await self._relaunch(merge)
        else:
            await self._begin_move(merge)

    async def _relaunch(self, merge: Merge) -> None:
        """Stop the source's episodes, and launch them at the destination.

        An open turn goes on from its tokens that have arrived. Without one, nothing but the lease moves."""
        ended, moved = self._flight.relaunch(merge.source, merge.destination)
        self._record(merge, moved)
        self._stats.moved_responses += len(moved)
        # First, so that the source's engine holds nothing when it is to load newer weights.
        await self._pool.abort(ended)
        await self.launch(moved)

    def _record(self, merge: Merge, moved: Collection[Launch]) -> None:
        message = f"{len(moved)} responses move from {merge.source} to {merge.destination}"
        log.info("%s", message)
        self._stats.repacks += 1
        self._timeline.event("Repack", message, MOVES)

    async def _begin_move(self, merge: Merge) -> None:
        """Submit the source's responses to the destination. The source keeps generating until `commit_move`."""
        moved = self._flight.begin_move(merge.source, merge.destination)
        self._record(merge, moved)
        # The attempts count as used from now on, also after a restart from the store.
        reserved = [(launch.key, Lease(merge.source, launch.lease.attempt)) for launch in moved]
        await self._store.do(lambda s: s.experience.launched(reserved))
        await self._pool.submit({merge.destination: [self._request(launch) for launch in moved]})

    async def commit_move(self, key: TrajectoryKey, lease: Lease, offset: int) -> None:
        """Commit a move at the destination's first token.

        One transaction transfers the lease and drops the source's tokens after `offset`."""
        tokens = self._receiver.drain_unsaved()
        self._receiver.partials.move(key, lease, offset)
        self._stats.moved_responses += 1

        def migrate(store: Store) -> None:
            store.experience.append(tokens)
            store.experience.move(key, lease, offset)

        await self._store.do(migrate)

    def _request(self, launch: Launch) -> GenerateRequest:
        # Attempts go on rising when a prompt is drawn again.
        version, failures = self._flight.version(launch.key.prompt), self._flight.failures(launch.key)
        return self._requests.of(launch, version, launch.lease.attempt, failures)
