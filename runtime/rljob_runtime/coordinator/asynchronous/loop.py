"""Asynchronous loop: updates from ready groups, concurrently with generation (Laminar §3).

(wait for groups → assign → train → publish → close) × updates; concurrently `generation`
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.asynchronous.experience_buffer import ExperienceBuffer
from rljob_runtime.coordinator.asynchronous.generation import AsyncGeneration
from rljob_runtime.coordinator.asynchronous.report import UpdateTimer, update_report
from rljob_runtime.coordinator.control_plane.commands import BoundaryCommands
from rljob_runtime.coordinator.core.async_utils import wait_for_event
from rljob_runtime.coordinator.core.errors import Interrupted, JobEnded
from rljob_runtime.coordinator.evaluation.evaluator import Evaluator
from rljob_runtime.coordinator.evaluation.stage import JOB_INTERRUPTED, WEIGHTS_GONE
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.coordinator.reporting.group_metrics import with_group_metrics
from rljob_runtime.coordinator.reporting.idle_metrics import round_activity, with_idle_shares
from rljob_runtime.coordinator.reporting.timeline import ROUNDS, TRAINER
from rljob_runtime.coordinator.reporting.totals import totals_after
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols import PromptSource, TrainReport
from rljob_runtime.protocols.trajectory import Group, PromptKey
from rljob_runtime.scheduling.trainability import untrainable_end

LOOK_SECONDS = 1.0
"""Interval at which the loop checks its conditions while it waits for groups."""


class AsyncLoop:
    """The `context.TrainingLoop` of `mode: Asynchronous`."""

    def __init__(self, context: CoordinatorContext, commands: BoundaryCommands, evaluator: Evaluator) -> None:
        settings = context.settings
        self._context = context
        self._commands = commands
        self._evaluator = evaluator
        evaluator.on_change = self.notify
        self._buffer = ExperienceBuffer(
            settings.sampler, settings.capacity, settings.prompts_per_round, settings.max_staleness, settings.seed
        )
        self.generation: AsyncGeneration | None = None
        self._started = asyncio.Event()
        self._changed = asyncio.Event()
        self._prompts: PromptSource | None = None
        self._clock = UpdateTimer(asyncio.get_running_loop().time)

    @property
    def first_kind(self) -> RoundKind:
        return RoundKind.PLAIN

    async def run(self) -> None:
        await self._started.wait()
        assert self.generation is not None
        await self.generation.run()

    def notify(self) -> None:
        self._changed.set()
        if self.generation is not None:
            self.generation.notify()

    async def begin(self, boundary: Boundary, prompts: PromptSource) -> None:
        self._prompts = prompts
        versions = await self._context.store.do(lambda store: store.versions.used())
        if self.generation is None:
            self._buffer.set_versions(versions, boundary.step)
            if boundary.report is not None and boundary.report.capacity_prompts is not None:
                self._buffer.restore_capacity(boundary.report.capacity_prompts)
            self.generation = AsyncGeneration(self._context, prompts, self._buffer, self._evaluator)
            self.generation.on_change = self._changed.set
            self._started.set()
        else:
            # Generation continued while the trainer restarted: groups consumed since its checkpoint are ready again.
            self._buffer.set_versions(versions, boundary.step)
            await self.generation.reload()
        self._clock.start()

    async def has_uncommitted_update(self) -> bool:
        boundary = await self._context.store.do(lambda store: store.boundaries.newest())
        step = boundary.step + 1 if boundary is not None else 1
        return bool(await self._context.store.do(lambda s: s.experience.assigned(step)))

    async def drain(self) -> None:
        if self.generation is not None:
            await self.generation.pause()

    async def finish(self) -> None:
        if self.generation is not None:
            await self.generation.pause(for_good=True)

    async def evaluate(self, boundary: Boundary) -> None:
        assert self.generation is not None
        if not self._evaluator.is_due(boundary.step, boundary.step):
            return
        version = await self._context.publisher.start_publishing(boundary.step)
        self._buffer.published(version, boundary.step)
        self.generation.request_groups(0)
        await self._begin_evaluations(boundary.step, boundary.step)
        await self._wait_for_evaluations(before_close=False)

    # --- evaluations ---

    async def _begin_evaluations(self, step: int, rounds: int) -> None:
        """Begin the evaluations that are due after `step` of `rounds`: replicas generate them beside their groups."""
        assert self._prompts is not None
        assert self.generation is not None
        versions = await self._context.store.do(lambda store: store.versions.used())
        if (version := versions.current(step)) is not None:
            await self._evaluator.begin(step, version, self._prompts, rounds)
            self.generation.notify()

    async def _wait_for_evaluations(self, before_close: bool) -> None:
        """Wait until the evaluations under way have ended: newer weights would replace theirs.

        `before_close`: an update is not closed. Then a pause of the job does not wait for them, and they are abandoned.
        Raises `Interrupted`.
        """
        if not self._evaluator.active:
            return
        self._context.reporter.update(stage="Evaluating")
        clock = asyncio.get_running_loop().time
        since = clock()
        async with self._evaluator.waited_for():
            while (version := self._evaluator.version) is not None:
                self._changed.clear()
                if not self._context.trainer.available or (self._commands.interrupted and not before_close):
                    raise Interrupted
                if self._commands.interrupted:
                    await self._evaluator.abandon(JOB_INTERRUPTED)
                elif self._holds(version):
                    since = clock()
                elif before_close and clock() - since > self._context.settings.join_patience:
                    await self._evaluator.abandon(WEIGHTS_GONE)
                await wait_for_event(self._changed, LOOK_SECONDS)
                if not before_close:
                    await self._apply_commands()

    def _holds(self, version: int) -> bool:
        return self.generation is not None and self.generation.holds(version)

    # --- an update ---

    async def advance(self, boundary: Boundary) -> Boundary:
        assert self.generation is not None
        step, publisher = boundary.step + 1, self._context.publisher
        await self._apply_commands()
        if self._commands.step is not None:
            # Otherwise the trainer is ahead by an update that no coordinator recorded: it publishes that first.
            version = await publisher.start_publishing(boundary.step)
            self._buffer.published(version, boundary.step)
        await self._begin_evaluations(boundary.step, self._context.follower.rounds)
        timeline = self._context.reporter.timeline
        with timeline.during(ROUNDS, "wait for groups", round=step):
            groups, stale = await self._groups(boundary)
        self._clock.waited()
        self._context.reporter.update(stage="Training")
        update = self._context.trainer.call(lambda trainer: trainer.train(self._context.term, step, groups))
        with timeline.during(ROUNDS, "training", round=step), timeline.during(TRAINER, "train", round=step):
            trained = await self._context.trainer.lose_if_refused(update, f"step {step} was refused")
        self._clock.trained()
        await self._wait_for_evaluations(before_close=True)
        self._clock.exclude(self._evaluator.drain_waited())
        self._context.reporter.update(stage="Publishing")
        with timeline.during(ROUNDS, "weight sync", round=step):
            version = await publisher.start_publishing(step)
        self._buffer.published(version, step)
        self.generation.weights_published()
        return await self._close(boundary, groups, stale, trained, version)

    async def _apply_commands(self) -> None:
        assert self.generation is not None
        leaving = self._context.follower.leaving
        await self._commands.apply(RoundKind.PLAIN, keep=self.generation.retire(leaving))

    async def _groups(self, boundary: Boundary) -> tuple[tuple[Group, ...], Mapping[PromptKey, int]]:
        """Return the groups of the next update with their tokens, and the staleness of each."""
        step, store = boundary.step + 1, self._context.store
        assigned = await store.do(lambda s: s.experience.assigned(step))
        if assigned:
            # A former coordinator selected them, or the trainer was lost while training on them.
            kept = await store.do(lambda s: s.experience.groups(assigned))
            stale = {group.prompt: self._buffer.staleness(group.version) for group in kept}
            self._buffer.taken = step
            self._request_groups(boundary.step)
        else:
            assigned = await self._wait_for_groups(boundary.step)
            await store.do(lambda s: s.experience.assign(step, assigned))
            stale = dict(self._buffer.take(assigned, step))
            self._request_groups(boundary.step)
        return tuple([await self._group(prompt) for prompt in assigned]), stale

    async def _group(self, prompt: PromptKey) -> Group:
        responses = await self._context.store.do(lambda s: s.experience.responses(prompt))
        await self._context.episodes.load(one.response.key for one in responses)
        return self._context.episodes.group(Group(prompt, self._token_ids(prompt), responses))

    def _token_ids(self, prompt: PromptKey) -> tuple[int, ...]:
        assert self._prompts is not None
        return tuple(self._prompts.prompt(prompt).token_ids)

    async def _wait_for_groups(self, step: int) -> tuple[PromptKey, ...]:
        assert self.generation is not None
        self._context.reporter.update(stage="Generating")
        while True:
            self._changed.clear()
            self._request_groups(step)
            # The user may have reduced the number of rounds.
            enough = self._context.follower.rounds <= step
            if enough or self._commands.interrupted or not self._context.trainer.available:
                raise Interrupted
            self._context.fleet.layouts.check_able(self._context.fleet.members)
            self._check_trainable()
            groups_in_flight = self.generation.groups
            if chosen := self._buffer.sample([groups_in_flight.version(prompt) for prompt in groups_in_flight]):
                return chosen
            self._progress()
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass
            await self._apply_commands()

    def _request_groups(self, step: int) -> None:
        """Request groups for all updates that have none."""
        assert self.generation is not None
        updates = self._context.follower.rounds - max(step, self._buffer.taken)
        self.generation.request_groups(updates * self._context.settings.prompts_per_round)

    def _progress(self) -> None:
        assert self.generation is not None
        ready, wanted = len(self._buffer), self._context.settings.prompts_per_round
        self._context.reporter.update(
            stage="Generating",
            progress=round(min(1.0, ready / wanted), 3),
            buffer=ready,
            in_flight=len(self.generation.groups),
            kv_cache_use=round(self.generation.stats.kv_use, 3),
        )

    def _check_trainable(self) -> None:
        assert self.generation is not None
        permitted = self._context.settings.max_untrainable_groups
        if failure := untrainable_end(self.generation.ends.untrainable, permitted):
            raise JobEnded(failure)

    async def _close(
        self,
        boundary: Boundary,
        groups: tuple[Group, ...],
        stale: Mapping[PromptKey, int],
        trained: TrainReport,
        version: int,
    ) -> Boundary:
        assert self.generation is not None
        clock, stats = self._clock, self.generation.stats.drain()
        clock.standstill = self.generation.drain_blocked_seconds()
        clock.published()
        self._buffer.adapt(clock.part(0) / clock.total if clock.total else 0.0, stats.fullness)
        layout = self._context.fleet.tensor_parallel, self._context.fleet.layouts.drain_seconds()
        measured = update_report(groups, stale, stats, clock, trained, layout, self._buffer.capacity)
        dropped = (measured.filtered_groups or 0) + (measured.requeued_prompts or 0)
        totals = totals_after(boundary.totals, measured, dropped * self._context.settings.responses_per_prompt)
        cursor = await self._context.store.do(lambda s: s.experience.cursor())
        risen = self._context.rewards.take_anchors()
        timeline, replicas = self._context.reporter.timeline, tuple(self._context.fleet.available())
        activity = round_activity(timeline, clock.span, replicas, synchronous=False)

        with_episode_metrics = self._context.episodes.measure(groups, timeline)

        def close(store: Store) -> Boundary:
            report = with_group_metrics(measured, groups, store.reward_terms(trained.step))
            report = with_episode_metrics(report, store)
            report = with_idle_shares(report, activity)
            closed = Boundary(trained.step, cursor, totals, report)
            store.experience.close_update(closed, risen, stale, self._context.episodes.digests(groups))
            return closed

        closed = await self._context.store.do(close)
        self._context.episodes.drop(group.prompt for group in groups)
        report = closed.report or measured
        clock.start()
        self._context.notify_closed(report, trained)
        first, last = await self._context.store.do(lambda store: store.boundaries.reward_ends())
        self._context.reporter.event(
            stage="Generating",
            round=closed.step,
            kind=RoundKind.PLAIN,
            reward=report.reward,
            reward_first=first,
            reward_last=last,
            tokens_per_second=round(stats.tokens / report.seconds, 1) if report.seconds else None,
            preemptions=stats.preemptions,
            kv_cache_use=round(stats.kv_use, 3),
            weight_version=version,
            staleness=report.staleness,
            max_staleness=report.max_staleness,
            buffer=len(self._buffer),
            in_flight=len(self.generation.groups),
            last_round=report,
            totals=totals,
        )
        return closed
