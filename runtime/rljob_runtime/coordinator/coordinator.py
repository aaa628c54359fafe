"""Coordinator: takes a job from boundary to boundary, follows the operator's target and reports.

    recover → (advance → checkpoint) × rounds → export

The training loop of the job's mode (`on_policy`, `asynchronous`) advances it. `scheduling` decides. The only clock is
the event loop's. The coordinator may be killed at any line: what matters is stored before it acts on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from rljob_api.spec.training import Mode
from rljob_api.status import Finished, FinishedOutcome, RuntimeStatus, StatusWarning
from rljob_runtime.coordinator.asynchronous.loop import AsyncLoop
from rljob_runtime.coordinator.control_plane.blocked import BlockedConditions, EngineMismatch
from rljob_runtime.coordinator.control_plane.commands import BoundaryCommands
from rljob_runtime.coordinator.control_plane.target_follower import TargetFollower
from rljob_runtime.coordinator.core.async_utils import Apart, in_daemon_thread
from rljob_runtime.coordinator.core.errors import (
    ExportRefused,
    FunctionNotUsable,
    Interrupted,
    JobEnded,
    LayoutNotUsable,
    ModelNotUsable,
    TrainerLost,
)
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.episodes.episodes import Episodes, SingleTurns
from rljob_runtime.coordinator.evaluation.evaluator import Evaluator
from rljob_runtime.coordinator.fleet.fleet import Fleet
from rljob_runtime.coordinator.fleet.layouts import check_layouts
from rljob_runtime.coordinator.loop.context import (
    CoordinatorContext,
    EndObserver,
    EvaluationObserver,
    RoundObserver,
    TrainingLoop,
)
from rljob_runtime.coordinator.on_policy.loop import OnPolicyLoop
from rljob_runtime.coordinator.on_policy.report import rounds_finished
from rljob_runtime.coordinator.reporting.evaluations import EvaluationBoard
from rljob_runtime.coordinator.reporting.layout_stats import LayoutStats
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.coordinator.store.latency_monitor import StoreLatencyMonitor
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.trainer.best_model import BestModel
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
from rljob_runtime.scheduling.backoff import TrainerLosses
from rljob_runtime.scheduling.layouts.adaptive_switches import AdaptiveSwitches
from rljob_runtime.scheduling.layouts.layout_switch import NeverSwitch, SwitchPolicy
from rljob_runtime.scheduling.status_cadence import resumed_status

log = logging.getLogger(__name__)

MOST_PRUNED = 4
"""Most rounds that are pruned after one that was closed."""

EVALUATION_OVERLAP = "EvaluationOverlap"
"""Reason of the warning about prompts of evaluations that training has too."""

PromptsFrom = Callable[[dict[str, bytes]], Awaitable[PromptSource]]
"""Opens prompts, with the tokenizer in the model files, and rewards. Raises `PromptsNotUsable`, `RewardsNotUsable` and
`RewardsUnavailable`."""


@dataclass(frozen=True)
class CoordinatorInputs:
    """What a coordinator is built from.

    `before`: the last status that an earlier coordinator reported. `switch_policy`: in place of the settings' one.
    `apart`: computes decisions outside of the event loop."""

    control: ControlPlane
    backend: Backend
    store: StoreAccess
    prompts_from: PromptsFrom
    rewards: Rewards
    settings: Settings
    term: int
    observers: Sequence[RoundObserver] = ()
    evaluation_observers: Sequence[EvaluationObserver] = ()
    on_end: Sequence[EndObserver] = ()
    on_report: Callable[[RuntimeStatus], None] = lambda status: None
    before: RuntimeStatus | None = None
    timeline: Timeline = field(default_factory=Timeline)
    switch_policy: SwitchPolicy | None = None
    apart: Apart = in_daemon_thread
    episodes: Episodes = field(default_factory=SingleTurns)


def _switch_policy(settings: Settings) -> SwitchPolicy:
    return AdaptiveSwitches(settings.switch_rules) if settings.switch_rules is not None else NeverSwitch()


class Coordinator:
    """The coordinator of one job. Call `run` once."""

    def __init__(self, inputs: CoordinatorInputs) -> None:
        settings, term, before = inputs.settings, inputs.term, inputs.before
        self._store = store = StoreLatencyMonitor(inputs.store)
        self._prompts_from = inputs.prompts_from
        self._rewards = inputs.rewards
        self._settings = settings
        self._term = term
        first = resumed_status(before or RuntimeStatus(), term)
        self._reporter = Reporter(inputs.control, first, settings.back_off, inputs.timeline)
        self._reporter.on_written = inputs.on_report
        self._episodes = inputs.episodes
        self._fleet = Fleet(inputs.episodes.backend(inputs.backend), term, settings, self._reporter)
        self._trainer = TrainerClient(inputs.backend, term, settings, self._reporter)
        self._best_model = BestModel(self._trainer, store, term, settings, self._reporter)
        self._checkpoints = Checkpoints(
            self._trainer, store, term, settings, self._reporter, self._best_model.make_room
        )
        self._board = EvaluationBoard(self._reporter, settings.keep_best)
        reported = before.weight_version or 0 if before is not None else None
        self._publisher = WeightPublisher(store, self._fleet, self._trainer, self._reporter, reported)
        self._follower = TargetFollower(inputs.control, self._fleet, self._trainer, self._reporter)
        self._blocked = BlockedConditions(self._reporter, self._follower, settings.rewards_back_off)
        self._commands = BoundaryCommands(self._follower, self._checkpoints, self._trainer)
        self._context = context = CoordinatorContext(
            store,
            settings,
            term,
            self._reporter,
            self._fleet,
            self._trainer,
            self._publisher,
            self._follower,
            inputs.rewards,
            inputs.observers,
            (self._board.add, *inputs.evaluation_observers),
            inputs.switch_policy or _switch_policy(settings),
            inputs.apart,
            inputs.on_end,
            inputs.episodes,
        )
        self._evaluator = Evaluator(context)
        self.loop: TrainingLoop = (
            AsyncLoop(context, self._commands, self._evaluator)
            if settings.mode is Mode.ASYNCHRONOUS
            else OnPolicyLoop(context, self._commands, self._evaluator, before.kind if before is not None else None)
        )
        self._commands.drain = self.loop.drain
        self._follower.needs_trainer_state = lambda: self._commands.may_lose_updates
        self._prompts: PromptSource | None = None
        self._trainer_losses = TrainerLosses()

    # --- life ---

    async def run(self) -> Finished | None:
        """Run the job; return its result, or None if stopped first.

        Raises `StaleTerm` if a later coordinator has the term.
        """
        self._fleet.on_change = self.loop.notify
        self._follower.on_change = self.loop.notify
        restarts = await self._store.do(Store.count_restart)
        log.info("coordinator of term %d, start %d", self._term, restarts + 1)
        self._reporter.timeline.start(self._term)
        work = asyncio.create_task(self._work(restarts), name="work")
        helpers = [
            asyncio.create_task(self._reporter.run(), name="report"),
            asyncio.create_task(self._follower.run(), name="follow"),
            asyncio.create_task(self._fleet.run(), name="heartbeat"),
            asyncio.create_task(self._fleet.weights.load_newcomers(), name="newcomers"),
            asyncio.create_task(self.loop.run(), name="loop"),
            asyncio.create_task(self._evaluator.run(), name="evaluations"),
            asyncio.create_task(self._episodes.run(self._reporter.problem), name="episodes"),
            asyncio.create_task(self._store.watch(self._reporter), name="store"),
        ]
        try:
            # A helper ends only by an error: a stale term, or a bug. Both end the coordinator.
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

    def layout_stats(self) -> LayoutStats:
        """Return totals of layout switches for metrics."""
        return self._fleet.layout_stats()

    def stop(self) -> None:
        """Stop soon (SIGTERM): received tokens are stored, the last update gets a checkpoint, engines live on.

        `run` returns None then.
        """
        self._commands.stop()
        self.loop.notify()

    async def _work(self, restarts: int) -> Finished | None:
        while not self._commands.stopping:
            try:
                await self._run_job(restarts)
            except TrainerLost as error:
                if self._trainer_losses.lose():
                    return await self._finish(FinishedOutcome.FAILED, "TrainerKeepsFailing", str(error))
                losses = self._trainer_losses.count
                log.warning("the trainer is restarted (%d losses without a further round): %s", losses, error)
                self._commands.step = None
                await asyncio.sleep(self._settings.back_off.delay(losses) or 0.0)
            except Interrupted:
                log.info("generation was interrupted")
            except RewardsUnavailable as error:
                await self._blocked.wait_for_retry(error)
            except EngineMismatch as error:
                await self._blocked.block(error)
            except (FunctionNotUsable, ModelNotUsable, LayoutNotUsable, PromptsNotUsable, RewardsNotUsable) as error:
                return await self._finish(FinishedOutcome.FAILED, type(error).__name__, str(error))
            except JobEnded as ended:
                return await self._finish(ended.finished.outcome, ended.finished.reason, ended.finished.message)
        await self._leave()
        return None

    async def _leave(self) -> None:
        """Save the last update: the trainer may leave together with this coordinator."""
        try:
            await self._commands.save()
        except TrainerLost as error:
            log.warning("the last update has no checkpoint, because the trainer was lost: %s", error)
        self._reporter.event(stage="Draining")

    async def _finish(self, outcome: FinishedOutcome, reason: str, message: str) -> Finished:
        # Nothing reports a warning after the end.
        await self._context.notify_ended()
        finished = Finished(outcome=outcome, reason=reason, message=message[:2048])
        self._reporter.event(stage="Finished", finished=finished, progress=None)
        return finished

    # --- the job ---

    async def _run_job(self, restarts: int) -> None:
        """Run the job from its last boundary to its end. Raises `JobEnded` there."""
        boundary = await self._recover(restarts)
        await self._best_model.begin(boundary.step)
        if self._commands.step == boundary.step:
            await self._best_model.save_if_due(boundary.step, self._follower.rounds)
        while True:
            # A running round is completed even if the spec has fewer rounds by now: its update may be done.
            while boundary.step < self._follower.rounds or await self.loop.has_uncommitted_update():
                boundary = await self.loop.advance(boundary)
                self._commands.step = boundary.step
                self._trainer_losses.finish(boundary.step)
                await self._checkpoints.save_if_due(boundary.step)
                await self._best_model.save_if_due(boundary.step, self._follower.rounds)
                await self._best_model.forget_worse(self._checkpoints.floor)
                await self._prune()
            await self._best_model.save_if_due(boundary.step, boundary.step)
            # Before the last evaluation, which may take long.
            await self._checkpoints.save_if_missing(boundary.step)
            await self.loop.evaluate(boundary)
            await self.loop.finish()
            path = await self._export()
            # The export may wait long for disk space, and the spec may get more rounds meanwhile.
            if boundary.step >= self._follower.rounds:
                self._reporter.update(model_path=path)
                raise JobEnded(rounds_finished(boundary.step, path))

    async def _prune(self) -> None:
        """Prune old rounds, a few at a time if the store has many."""
        for _ in range(MOST_PRUNED):
            if not await self._store.do(lambda store: store.prune(self._settings.keep_rounds)):
                return

    async def _export(self) -> str:
        while True:
            await self._commands.apply(None)
            try:
                path = await self._checkpoints.export()
                await self._best_model.export()
                await self._best_model.forget_all_others()
            except ExportRefused as error:
                await self._blocked.wait_for_retry(error)
            else:
                self._blocked.clear()
                return path

    def _warn_about_overlaps(self, prompts: PromptSource) -> None:
        """Show evaluations whose results look better than they are."""
        found = [f"{count} of evaluation {name}" for name, count in sorted(prompts.overlaps.items())]
        message = f"training has prompts of evaluations: {', '.join(found)}; remove them from one of the two"
        warning = StatusWarning(reason=EVALUATION_OVERLAP, message=message[:2048]) if found else None
        if warning is not None:
            log.warning("%s", message)
        self._reporter.problem(EVALUATION_OVERLAP, warning)

    async def _record_step(self, state: TrainerState) -> None:
        """Record the trainer's step. If the store is at the same step, it can write a checkpoint."""
        self._trainer.may_hold_updates = state.step != state.kept
        boundary = await self._store.do(lambda store: store.boundaries.newest())
        self._commands.step = state.step if boundary is not None and boundary.step == state.step else None

    async def _recover(self, restarts: int) -> Boundary:
        """Bring trainer and store to the same step; return that boundary."""
        await self._follower.wait_for_job()
        await self._trainer.find_existing()
        await self._commands.apply_suspend()
        await self._commands.apply_trainer_eviction()
        self._commands.forget_step()
        # While the trainer's step is unknown, it must not publish its weights under an old version.
        self._fleet.weights.forget()
        self._reporter.update(stage="Starting")
        state = await self._follower.unless_suspended(self._trainer.start())
        if state is None:
            raise Interrupted
        self._follower.record_trainer_pods()
        await self._record_step(state)
        check_layouts(state.model_files, self._settings.tensor_parallel_sizes)
        layout = await self._store.do(lambda store: store.rounds.open_layout())
        self._follower.expect_rounds(self.loop.first_kind, layout)
        self._fleet.set_model_files(state.model_files)
        await self._evaluator.close()
        prompts = self._prompts or await self._follower.unless_suspended(self._prompts_from(state.model_files))
        if prompts is None:
            raise Interrupted
        self._prompts = prompts
        self._warn_about_overlaps(prompts)
        self._blocked.clear()
        try:
            boundary = await self._store.do(
                lambda s: reconcile_store_and_trainer(
                    s,
                    state,
                    prompts,
                    self._settings.prompts_per_round,
                    self._settings.mode,
                    self._settings.shares,
                )
            )
        except NoHistory as error:
            await self._trainer.mark_lost(error)
            raise TrainerLost(str(error)) from error
        # An earlier coordinator may have missed the answer to the last update. It is finished before machines leave.
        self._commands.step = boundary.step if boundary.step == state.step else None
        self._board.restore(await self._store.do(lambda store: store.evaluations.results()))
        self._rewards.restore_anchors(await self._store.do(lambda store: store.boundaries.anchors()))
        self._publisher.extend_timeout(self._settings.join_patience)
        self._reporter.timeline.round = boundary.step
        totals = boundary.totals.model_copy(update={"coordinator_restarts": restarts})
        first, last = await self._store.do(lambda store: store.boundaries.reward_ends())
        self._reporter.event(
            round=boundary.step,
            totals=totals,
            # The first boundary has no report. The last reported one stays, see `status_cadence.LASTING_FIELDS`.
            last_round=boundary.report or self._reporter.draft.last_round,
            deferred_prompts=len(boundary.queue),
            reward_first=first,
            reward_last=last,
        )
        boundary = replace(boundary, totals=totals)
        await self.loop.begin(boundary, prompts)
        return boundary
