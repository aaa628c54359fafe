"""Asynchronous generation: replicas draw prompts, generate them, and load newer weights when idle (Laminar §3).

Replicas, trainer and rewards run independently; no replica waits for another. One loop owns all state and processes one
event at a time, as in `on_policy.generation`; pollers, loads and scorers only post events. The loop outlives trainers:
what a lost trainer had consumed returns to the buffer while generation continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rljob_runtime.coordinator.asynchronous.dispatch import Dispatcher
from rljob_runtime.coordinator.asynchronous.experience_buffer import ExperienceBuffer
from rljob_runtime.coordinator.asynchronous.group_ends import TOO_STALE, GroupEnds
from rljob_runtime.coordinator.asynchronous.prompt_queue import PromptQueue
from rljob_runtime.coordinator.asynchronous.repack import BusyReplica, RepackMonitor
from rljob_runtime.coordinator.asynchronous.replica_weights import ReplicaWeights, WeightsLoaded
from rljob_runtime.coordinator.asynchronous.restore import ready_groups, restore
from rljob_runtime.coordinator.core.async_utils import Broken
from rljob_runtime.coordinator.evaluation.evaluator import Evaluator
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.inbox import Inbox
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPolled, ReplicaPool
from rljob_runtime.coordinator.generation.scoring import RewardReceived, RewardRequests
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.generation.token_receiver import TokenReceiver
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.groups import KeptGroup
from rljob_runtime.protocols import PromptSource, Replica, ReplicaReport
from rljob_runtime.protocols.trajectory import Lease, Response, TrajectoryKey
from rljob_runtime.scheduling.asynchronous.async_groups import JOB_ENDED, GroupTracker
from rljob_runtime.scheduling.asynchronous.repack import has_work, is_due
from rljob_runtime.scheduling.asynchronous.replica_assignment import PromptQuota, ReplicaLimits, ReplicaState, assign
from rljob_runtime.scheduling.partial_responses import DeltaStatus
from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round_plan import Launch, RestoredSample
from rljob_runtime.timeline.idle import BLOCKED, blocked_row

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Reload:
    done: asyncio.Future[None]


Event = ReplicaPolled | Broken | WeightsLoaded | RewardReceived | _Reload | None


class AsyncGeneration:
    """Generation of one job. `run` until cancelled. `on_change` is called when an update might find its groups."""

    def __init__(
        self, context: CoordinatorContext, prompts: PromptSource, buffer: ExperienceBuffer, evaluator: Evaluator
    ) -> None:
        settings = context.settings
        self._evaluator = evaluator
        self._context = context
        self._prompts = prompts
        self.buffer = buffer
        self.groups = GroupTracker(
            settings.responses_per_prompt, settings.reward_failures, settings.drops_equal, settings.mixes_versions
        )
        self.stats = GenerationStats()
        self.on_change: Callable[[], None] = lambda: None
        self._blocked_seconds = 0.0
        self._requested = 0
        self._inbox: Inbox[Event] = Inbox()
        self._receiver = TokenReceiver(self.stats)
        self._observer = EngineObserver(context.fleet.layout_of)
        post = self._inbox.post
        self._pool = ReplicaPool(context.fleet, context.term, settings, self._observer, post, context.fleet.available)
        self._queue = PromptQueue(settings, prompts)
        self.ends = GroupEnds(context, self.groups, buffer, self._queue, self._receiver, self.stats)
        self._dispatcher = Dispatcher(context, prompts, self.groups, self._receiver, self._pool, self.stats)
        self._weights = ReplicaWeights(context.fleet, context.term, post, buffer.knows)
        scorer = context.episodes.scorer(prompts, context.rewards)
        self._scoring = RewardRequests(scorer, self.stats, post, context.reporter.timeline)
        partials, failures = self._receiver.partials, context.policy_failures
        self._repack_monitor = RepackMonitor(settings, self._pool, partials, prompts, failures, context.episodes)
        self._scores: list[tuple[TrajectoryKey, float]] = []
        self._leaving: Collection[str] = ()
        self._blocked: Collection[str] = ()
        self._paused = self._ending = self._weights_published = False
        self._drained = asyncio.Event()
        self._fleet_changed = True

    # --- from outside ---

    def notify(self) -> None:
        """Check the fleet and the target again: one of them changed."""
        self._fleet_changed = True
        self._inbox.post(None)

    def request_groups(self, groups: int) -> None:
        """Set the number of groups that all coming updates need, and resume after a pause."""
        self._requested, self._paused = groups, False
        self._inbox.post(None)

    def weights_published(self) -> None:
        """Consider a repack now: newer weights are available."""
        self._weights_published = True
        self._inbox.post(None)

    def retire(self, machines: Collection[str]) -> frozenset[str]:
        """Give these machines no new work. Returns those that still hold responses."""
        self._leaving = machines
        self._inbox.post(None)
        return frozenset(name for name in machines if self._busy(name))

    async def pause(self, for_good: bool = False) -> None:
        """Stop all generation; the store has everything when this returns.

        `for_good`: open groups are not needed; their prompts are requeued."""
        self._drained.clear()
        self._paused, self._ending = True, for_good
        self._inbox.post(None)
        await self._drained.wait()

    async def reload(self) -> None:
        """Read the store again after a rewind: groups of undone updates are ready again, or requeued."""
        done = asyncio.get_running_loop().create_future()
        self._inbox.post(_Reload(done))
        await done

    def drain_blocked_seconds(self) -> float:
        """Return the mean seconds that a replica was blocked by a full buffer, since the last call."""
        seconds, self._blocked_seconds = self._blocked_seconds, 0.0
        return seconds

    # --- life ---

    async def run(self) -> None:
        """Run until cancelled. Raises `StaleTerm` if another coordinator has taken over."""
        await self._restore()
        clock = asyncio.get_running_loop().time
        flushed = looked = clock()
        try:
            while True:
                if self._paused:
                    await self._drain()
                await self._track_replicas()
                if not self._paused:
                    await self.ends.requeue_too_stale()
                    await self._requeue_orphaned()
                    await self._dispatcher.launch(self.groups.launch(self._available()))
                    await self._assign()
                    await self._launch_evaluations()
                    if is_due(self._weights_published, clock() - looked, self._context.settings.repack_seconds):
                        looked, self._weights_published = clock(), False
                        await self._repack()
                before = clock()
                for event in await self._inbox.next(self._context.settings.flush):
                    await self._handle(event)
                self._blocked_seconds += (clock() - before) * len(self._blocked) / max(1, len(self._pool.names()))
                await self._settle()
                if clock() - flushed >= self._context.settings.flush:
                    flushed = clock()
                    await self.ends.flush()
        finally:
            await self._pool.close()
            await self._weights.close()
            await self._scoring.close()

    async def _restore(self) -> None:
        """Restore the state of a former coordinator."""
        await self._queue.restore_cursor(self._context.store)
        in_flight = await self._read_pool()
        await restore(in_flight, self._context.store, self.groups, self._receiver, self._scoring)
        await self._settle()

    async def _read_pool(self) -> list[KeptGroup]:
        """Read requeued prompts and ready groups from the store. Returns the groups in flight."""
        await self._queue.restore_requeued(self._context.store)
        groups = await self._context.store.do(lambda s: s.experience.open_groups())
        self.buffer.fill(ready_groups(groups))
        self.on_change()
        return [group for group in groups if group.ready is None]

    async def _drain(self) -> None:
        await self.ends.flush()
        running = [launch for name in self._pool.names() for launch in self.groups.running_on(name)]
        for name in self._pool.names():
            self.groups.mark_replica_lost(name)
        await self._pool.abort([*running, *self.groups.drain_aborts()])
        await self._evaluator.stop(self._pool)
        if self._ending:
            await self.ends.requeue([*self.groups, *self.buffer.clear()], JOB_ENDED)
        self._set_blocked(())
        self._drained.set()

    # --- replicas ---

    async def _track_replicas(self) -> None:
        """Requeue responses of replicas that left the fleet; replicas with the same version continue them."""
        if not self._fleet_changed:
            return
        self._fleet_changed = False
        for name in await self._pool.track(self.groups.attempts() | self._evaluator.void()):
            self.groups.mark_replica_lost(name)
        self._evaluator.retain(self._pool)
        self._weights.track(replica for name in self._pool.names() if (replica := self._pool.replica(name)))

    def _available(self) -> dict[str, int]:
        """Return the replicas that may receive responses, with their versions."""
        holding, here = self._weights.held_versions(), set(self._pool.names(without=self._leaving))
        return {name: version for name, version in holding.items() if name in here}

    def _busy(self, machine: str) -> bool:
        return any(self.groups.load(name) for name in self._pool.names() if machine_of(name) == machine)

    async def _assign(self) -> None:
        """Let idle replicas load their machine's newest weights, and replicas with the newest weights draw prompts."""
        holding, settings = self._weights.held_versions(), self._context.settings
        states = [
            ReplicaState(
                name,
                holding.get(name),
                self._weights.next_version(name),
                self._load(name),
                self._evaluator.load(name),
                settings.mixes_versions,
            )
            for name in self._pool.names(without=self._leaving)
        ]
        prompts, responses = settings.prompts_per_round, settings.responses_per_prompt
        limits = ReplicaLimits.of(responses, prompts, len(self._pool.names()), self.buffer.capacity)
        assignment = assign(states, limits, self._to_begin, self._admit)
        for load in assignment.loads:
            self._weights.load(load.replica, load.version)
        if assignment.draws:
            await self._draw(assignment.draws)
        self._set_blocked(assignment.blocked)

    def _set_blocked(self, blocked: Collection[str]) -> None:
        timeline = self._context.reporter.timeline
        for name in sorted({*self._blocked, *blocked}):
            timeline.busy(blocked_row(name), BLOCKED, held=name in blocked)
        self._blocked = blocked

    def _load(self, name: str) -> int:
        return self.groups.load(name) + self._evaluator.load(name)

    async def _launch_evaluations(self) -> None:
        """Start responses of evaluations on the replicas that hold their weights.

        Engines are rarely idle in this mode. A decoding step takes hardly longer with some responses more.
        """
        version = self._evaluator.version
        training = {name: self.groups.load(name) for name, held in self._available().items() if held == version}
        await self._evaluator.launch(self._pool, training, urgent=True)

    def holds(self, version: int) -> bool:
        """Return whether a replica holds this version, or will load it from a relay when it is idle.

        No replica loads a version that is published no more, whatever relays hold. A version that no relay holds may
        not come any more, because the trainer may have gone on.
        """
        if version in self._weights.held_versions().values():
            return True
        fleet = self._context.fleet
        in_relays = any(machine.complete_version == version for machine in fleet.joined.values())
        return in_relays and fleet.weights.version == version

    @property
    def _to_begin(self) -> int:
        """Number of requested groups that are neither in flight nor ready."""
        return self._requested - len(self.groups) - len(self.buffer)

    def _admit(self, version: int, begun: Sequence[int] = ()) -> int:
        return self.buffer.admit(version, [*(self.groups.version(prompt) for prompt in self.groups), *begun])

    async def _draw(self, draws: Collection[PromptQuota]) -> None:
        """Draw prompts for replicas, requeued prompts first."""
        drawn = [(draw, *await self._queue.take(draw.groups)) for draw in draws]
        responses = self._context.settings.responses_per_prompt

        def save(store: Store) -> dict[TrajectoryKey, int]:
            known: dict[TrajectoryKey, int] = {}
            for draw, prompts, cursor in drawn:
                known |= store.experience.draw(prompts, cursor, draw.version, draw.replica, responses)
            return known

        saved = {key: RestoredSample(attempt) for key, attempt in (await self._context.store.do(save)).items()}
        for draw, prompts, _ in drawn:
            for prompt in prompts:
                self.groups.add(prompt, draw.version, draw.replica, saved)
            self.stats.drawn_prompts += len(prompts)
        await self._dispatcher.launch(self.groups.launch({draw.replica: draw.version for draw in draws}))

    async def _requeue_orphaned(self) -> None:
        """Requeue groups whose weights no replica can provide; newer weights will generate them."""
        if self._weights.settled:
            await self.ends.requeue_orphaned(self._weights.available_versions())

    # --- repack ---

    async def _repack(self) -> None:
        """Merge replicas in their tails, if the released replicas would find work."""
        holding = self._available()
        newest = max(holding.values(), default=None)
        if newest is None or not has_work(self._to_begin, self._admit(newest)):
            return
        replicas = {
            name: BusyReplica(version, self.groups.running_on(name), self.groups.has_move(name))
            for name, version in holding.items()
        }
        for merge in self._repack_monitor.merges(replicas):
            await self._dispatcher.migrate(merge)

    # --- events ---

    async def _handle(self, event: Event) -> None:
        match event:
            case ReplicaPolled(replica, report):
                self.stats.record(replica.name, report)
                self._weights.record_version(replica, report.weight_version)
                self._repack_monitor.record_stats(replica.name, report.stats)
                report = await self._evaluator.collect(self._pool, replica.name, report)
                await self._collect(replica, report)
            case Broken(error):
                raise error
            case WeightsLoaded():
                self._weights.finish_load(event)
            case RewardReceived(response, RewardFailure() as failure):
                await self._reward_failed(response, failure)
            case RewardReceived(response, reward) if not isinstance(reward, RewardFailure):
                if self.groups.scored(response.key, response.attempt, reward):
                    self._scores.append((response.key, reward))
            case _Reload(done):
                await self._read_pool()
                done.set_result(None)
            case _:
                pass

    async def _collect(self, replica: Replica, report: ReplicaReport) -> None:
        finished: list[Response] = []
        strays: dict[TrajectoryKey, Launch] = {}
        for delta in report.deltas:
            lease = Lease(replica.name, delta.attempt)
            if self.groups.moving_to(delta.key) == lease and self.groups.commit_move(delta.key, lease):
                # A move stores all received tokens: those of an ended response only together with its end.
                await self._finish(finished)
                await self._dispatcher.commit_move(delta.key, lease, delta.offset)
            status = self._receiver.accept(delta, lease, self.groups.lease(delta.key))
            if status is DeltaStatus.FINISHED and delta.finish_reason is not None:
                self.groups.generated(delta.key, lease)
                finished.append(self._receiver.partials.close(delta.key, delta.finish_reason))
            elif status in (DeltaStatus.GAP, DeltaStatus.WRONG_VERSION):
                log.warning("%s from %s: %s; launching it again", delta.key, replica.name, status)
                self.groups.requeue([delta.key])
                strays[delta.key] = Launch(delta.key, lease)
            elif status is DeltaStatus.STALE:
                # A former coordinator requested it.
                strays[delta.key] = Launch(delta.key, lease)
        if strays:
            await self._pool.abort(strays.values())
        await self._finish(finished)

    async def _finish(self, finished: list[Response]) -> None:
        """Store the ends of these responses, request their rewards, and clear the list."""
        if not finished:
            return
        ended, tokens = tuple(finished), self._receiver.drain_unsaved()
        finished.clear()
        await self._context.store.do(lambda s: s.experience.finish(tokens, ended))
        for response in ended:
            self._repack_monitor.record_end(response)
            self._scoring.start(response)

    async def _reward_failed(self, response: Response, failure: RewardFailure) -> None:
        """Abort the sample, never score it 0: it is generated again, or its group is filtered."""
        key = response.key
        if not self.groups.reward_failed(key, response.attempt, failure):
            return
        self.stats.aborted_samples += 1
        self.stats.lost_tokens += len(response.token_ids)
        most = self._context.settings.reward_failures
        failures = self.groups.failures(key) if key.prompt in self.groups else most + 1
        await self._context.store.do(lambda s: s.experience.restart(key, failures, failure.cause, failure.reason))

    async def _settle(self) -> None:
        """Pass on the results of the last events: rewards to the store, groups to the buffer, aborts to replicas."""
        scores, self._scores = self._scores, []
        if scores:
            await self._context.store.do(lambda s: s.experience.score(scores))
        over = self.groups.drain_done()
        for group in over:
            await self.ends.close(group)
        if aborts := self.groups.drain_aborts():
            await self._pool.abort(aborts)
        if gone := self.buffer.evicted():
            await self.ends.requeue(gone, TOO_STALE)
        if over:
            self.on_change()
