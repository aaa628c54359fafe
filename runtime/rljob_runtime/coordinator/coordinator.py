"""The coordinator: takes a job from boundary to boundary, follows the operator's target and reports what it sees.

    recover → (advance → checkpoint) × rounds → export

How it advances is the course of the job's mode (`on_policy`, `asynchronous`).
It decides nothing that `scheduling` can decide, holds no clock but the event loop's, and can be killed at any line:
what matters is in the store before it is acted on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from rljob_api.spec_training import Mode
from rljob_api.status import Finished, FinishedOutcome, RuntimeStatus
from rljob_runtime.coordinator.asynchronous.loop import AsyncLoop
from rljob_runtime.coordinator.control_plane.blocked import BlockedConditions, EngineMismatch
from rljob_runtime.coordinator.control_plane.commands import BoundaryCommands
from rljob_runtime.coordinator.control_plane.target_follower import TargetFollower
from rljob_runtime.coordinator.core.errors import (
    ExportRefused,
    Interrupted,
    JobEnded,
    LayoutNotUsable,
    ModelNotUsable,
    TrainerLost,
)
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.fleet.layouts import check_layouts
from rljob_runtime.coordinator.loop.context import CoordinatorContext, RoundObserver, TrainingLoop
from rljob_runtime.coordinator.on_policy.loop import OnPolicyLoop
from rljob_runtime.coordinator.on_policy.report import rounds_finished
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.store.latency_monitor import StoreLatencyMonitor
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.trainer.checkpoints import Checkpoints
from rljob_runtime.coordinator.trainer.recovery import NoHistory, reconcile_store_and_trainer
from rljob_runtime.coordinator.trainer.trainer_client import TrainerClient
from rljob_runtime.coordinator.trainer.weight_publisher import WeightPublisher
from rljob_runtime.protocols import (
    Backend,
    ControlPlane,
    PromptsNotUsable,
    PromptSource,
    Rewards,
    RewardsNotUsable,
    RewardsUnavailable,
    TrainerState,
)
from rljob_runtime.scheduling.status_cadence import resumed_status

log = logging.getLogger(__name__)

MAX_SETBACKS = 10
"""Losses of the trainer without a finished round in between, after which the job has failed."""

PRUNED_AT_ONCE = 4
"""Rounds, after one that was closed."""

PromptsFrom = Callable[[dict[str, bytes]], Awaitable[PromptSource]]
"""Opens prompts (with the tokenizer in the model files) and rewards. Raises `PromptsNotUsable`, `RewardsNotUsable`,
`RewardsUnavailable`."""


class Coordinator:
    """One job's coordinator. `run` once."""

    def __init__(
        self,
        control: ControlPlane,
        backend: Backend,
        store: StoreAccess,
        prompts_from: PromptsFrom,
        rewards: Rewards,
        settings: Settings,
        term: int,
        observers: Sequence[RoundObserver] = (),
        on_report: Callable[[RuntimeStatus], None] = lambda status: None,
        before: RuntimeStatus | None = None,
    ) -> None:
        self._store = store = StoreLatencyMonitor(store)
        self._prompts_from = prompts_from
        self._rewards = rewards
        self._settings = settings
        self._term = term
        self._reporter = Reporter(control, resumed_status(before or RuntimeStatus(), term), settings.back_off)
        self._reporter.on_written = on_report
        self._fleet = Fleet(backend, term, settings, self._reporter)
        self._trainer = TrainerClient(backend, term, settings, self._reporter)
        self._checkpoints = Checkpoints(self._trainer, store, term, settings, self._reporter)
        reported = before.weight_version or 0 if before is not None else None
        self._publication = WeightPublisher(store, self._fleet, self._trainer, self._reporter, reported)
        self._following = TargetFollower(control, self._fleet, self._trainer, self._reporter)
        self._halts = BlockedConditions(self._reporter, self._following, settings.rewards_back_off)
        self._orders = BoundaryCommands(self._following, self._checkpoints, self._trainer)
        parts = CoordinatorContext(
            store,
            settings,
            term,
            self._reporter,
            self._fleet,
            self._trainer,
            self._publication,
            self._following,
            rewards,
            observers,
        )
        self.course: TrainingLoop = (
            AsyncLoop(parts, self._orders)
            if settings.mode is Mode.ASYNCHRONOUS
            else OnPolicyLoop(parts, self._orders, before.kind if before is not None else None)
        )
        self._orders.hand_over = self.course.hand_over
        self._following.first_look = lambda: self._orders.unsure
        self._prompts: PromptSource | None = None
        self._setbacks = 0

    # --- life ---

    async def run(self) -> Finished | None:
        """Until the job is finished, or None when stopped before. Raises `StaleTerm` when another coordinator is in
        office."""
        self._fleet.on_change = self.course.wake
        self._following.on_change = self.course.wake
        restarts = await self._store.do(Store.count_restart)
        log.info("coordinator of term %d, start %d", self._term, restarts + 1)
        work = asyncio.create_task(self._work(restarts), name="work")
        helpers = [
            asyncio.create_task(self._reporter.run(), name="report"),
            asyncio.create_task(self._following.run(), name="follow"),
            asyncio.create_task(self._fleet.run(), name="heartbeat"),
            asyncio.create_task(self._fleet.weights.load_newcomers(), name="newcomers"),
            asyncio.create_task(self.course.run(), name="course"),
            asyncio.create_task(self._store.watch(self._reporter), name="store"),
        ]
        try:
            # A helper ends only by an error: out of office, or a bug. Either ends the coordinator.
            done, _ = await asyncio.wait({work, *helpers}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._reporter.flush(10.0)
            return work.result()
        finally:
            for task in (work, *helpers):
                task.cancel()
            await asyncio.gather(work, *helpers, return_exceptions=True)
            await self._fleet.aclose()
            await self._trainer.aclose()

    def stop(self) -> None:
        """Stop soon (SIGTERM): what came is kept, the last update is checkpointed, the engines live on, `run` returns
        None."""
        self._orders.stop()
        self.course.wake()

    async def _work(self, restarts: int) -> Finished | None:
        while not self._orders.stopping:
            try:
                await self._play(restarts)
            except TrainerLost as error:
                self._setbacks += 1
                if self._setbacks > MAX_SETBACKS:
                    return self._finish(FinishedOutcome.FAILED, "TrainerKeepsFailing", str(error))
                log.warning("starting the trainer anew (%d without a round): %s", self._setbacks, error)
                self._orders.step = None
                await asyncio.sleep(self._settings.back_off.delay(self._setbacks) or 0.0)
            except Interrupted:
                log.info("generation was interrupted")
            except RewardsUnavailable as error:
                await self._halts.wait(error)
            except EngineMismatch as error:
                await self._halts.for_good(error)
            except (ModelNotUsable, LayoutNotUsable, PromptsNotUsable, RewardsNotUsable) as error:
                return self._finish(FinishedOutcome.FAILED, type(error).__name__, str(error))
            except JobEnded as ended:
                return self._finish(ended.finished.outcome, ended.finished.reason, ended.finished.message)
        await self._leave()
        return None

    async def _leave(self) -> None:
        """The next coordinator finds the trainer, unless that leaves too, as when both are on one node."""
        try:
            await self._orders.save()
        except TrainerLost as error:
            log.warning("the last checkpoint stands: the trainer was lost before it wrote another one: %s", error)
        self._reporter.event(stage="Draining")

    def _finish(self, outcome: FinishedOutcome, reason: str, message: str) -> Finished:
        finished = Finished(outcome=outcome, reason=reason, message=message[:2048])
        self._reporter.event(stage="Finished", finished=finished, progress=None)
        return finished

    # --- the job, from top to bottom ---

    async def _play(self, restarts: int) -> None:
        """From wherever the job stands to its end. Raises `JobEnded` there."""
        boundary = await self._recover(restarts)
        while True:
            # A round under way is played to its end though fewer are asked for by now: its update may be done already.
            while boundary.step < self._following.rounds or await self.course.under_way():
                boundary = await self.course.advance(boundary)
                self._orders.step, self._setbacks = boundary.step, 0
                await self._checkpoints.save_if_due(boundary.step)
                await self._prune()
            await self.course.finish()
            await self._checkpoints.save_if_missing(boundary.step)
            path = await self._export()
            # The final model may wait long for space, and more rounds may be asked for meanwhile.
            if boundary.step >= self._following.rounds:
                self._reporter.update(model_path=path)
                raise JobEnded(rounds_finished(boundary.step, path))

    async def _prune(self) -> None:
        """A round goes for each that comes; where the store has many more than it is to keep, some at a time."""
        for _ in range(PRUNED_AT_ONCE):
            if not await self._store.do(lambda store: store.prune(self._settings.keep_rounds)):
                return

    async def _export(self) -> str:
        while True:
            await self._orders.obey(None)
            try:
                path = await self._checkpoints.export()
            except ExportRefused as error:
                await self._halts.wait(error)
            else:
                self._halts.over()
                return path

    async def _note_step(self, state: TrainerState) -> None:
        """Where the trainer stands. It can be asked for a checkpoint already where the store stands there, too."""
        self._trainer.may_hold_updates = state.step != state.kept
        boundary = await self._store.do(Store.boundary)
        self._orders.step = state.step if boundary is not None and boundary.step == state.step else None

    async def _recover(self, restarts: int) -> Boundary:
        """Bring trainer and store to one step."""
        await self._following.first()
        await self._trainer.find_existing()
        await self._orders.obey_suspend()
        await self._orders.obey_leave()
        self._orders.forget_step()
        # Until it is known at which step the trainer stands, it must publish nothing under an old number.
        self._fleet.weights.forget()
        self._reporter.update(stage="Starting")
        state = await self._following.unless_suspended(self._trainer.start())
        if state is None:
            raise Interrupted
        self._following.trainer_ready()
        await self._note_step(state)
        check_layouts(state.model_files, self._settings.tensor_parallel_sizes)
        self._following.expect(self.course.first_kind)
        self._fleet.set_model_files(state.model_files)
        prompts = self._prompts or await self._following.unless_suspended(self._prompts_from(state.model_files))
        if prompts is None:
            raise Interrupted
        self._prompts = prompts
        self._halts.over()
        try:
            boundary = await self._store.do(
                lambda s: reconcile_store_and_trainer(
                    s, state, prompts, self._settings.prompts_per_round, self._settings.mode
                )
            )
        except NoHistory as error:
            await self._trainer.mark_lost(error)
            raise TrainerLost(str(error)) from error
        # A former coordinator may never have heard of the last update: that is finished before anybody may go.
        self._orders.step = boundary.step if boundary.step == state.step else None
        self._rewards.restore_anchors(await self._store.do(Store.anchors))
        self._publication.extend_timeout(self._settings.join_patience)
        totals = boundary.totals.model_copy(update={"coordinator_restarts": restarts})
        first, last = await self._store.do(Store.reward_ends)
        self._reporter.event(
            round=boundary.step,
            totals=totals,
            # At the first boundary there is none. What was reported stays, see `status_cadence.LASTING_FIELDS`.
            last_round=boundary.report or self._reporter.draft.last_round,
            deferred_prompts=len(boundary.queue),
            reward_first=first,
            reward_last=last,
        )
        boundary = replace(boundary, totals=totals)
        await self.course.begin(boundary, prompts)
        return boundary
