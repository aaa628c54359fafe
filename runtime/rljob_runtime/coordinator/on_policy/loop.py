"""On-policy loop: synchronous rounds, one after the other.

(draw → generate → train → publish and load → close → checkpoint) × rounds
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.control_plane.blocked import EngineMismatch
from rljob_runtime.coordinator.control_plane.commands import BoundaryCommands
from rljob_runtime.coordinator.core.errors import JobEnded
from rljob_runtime.coordinator.evaluation.evaluator import Evaluator
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.coordinator.on_policy.evaluation import OnPolicyEvaluation
from rljob_runtime.coordinator.on_policy.generation import Generation, GenerationContext
from rljob_runtime.coordinator.on_policy.idle_profiler import IdleProfiler, Stage
from rljob_runtime.coordinator.on_policy.prompt_draw import PromptSelector
from rljob_runtime.coordinator.on_policy.report import RoundTimer, round_report
from rljob_runtime.coordinator.reporting.group_metrics import with_group_metrics
from rljob_runtime.coordinator.reporting.idle_metrics import round_activity, with_idle_shares
from rljob_runtime.coordinator.reporting.outside_time import outside_time
from rljob_runtime.coordinator.reporting.timeline import ROUNDS, TRAINER
from rljob_runtime.coordinator.reporting.totals import totals_after
from rljob_runtime.coordinator.store.records import Boundary, OpenRound
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.rounds import LOAN_RATES, SWITCH_COSTS
from rljob_runtime.coordinator.stream_training.loans import LoanManager
from rljob_runtime.coordinator.stream_training.stream import Streaming
from rljob_runtime.perf_model.observed_speed import ROUNDS_KEPT
from rljob_runtime.protocols import PromptSource, TrainReport
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.fault_detection.logprob_agreement import engine_mismatch
from rljob_runtime.scheduling.layouts.fleet_layout import RoundLayout
from rljob_runtime.scheduling.lending.gain import LENGTHS_USED, LoanMeasurements
from rljob_runtime.scheduling.round_plan import PromptOutcome
from rljob_runtime.scheduling.trainability import untrainable_end


class OnPolicyLoop:
    """The `context.TrainingLoop` of `mode: OnPolicy`.

    `before`: kind of the round that a former coordinator reported."""

    def __init__(
        self,
        context: CoordinatorContext,
        commands: BoundaryCommands,
        evaluator: Evaluator,
        before: RoundKind | None,
    ) -> None:
        self._context = context
        self._evaluation = OnPolicyEvaluation(context, commands, evaluator)
        self.profiler = IdleProfiler(context)
        self._commands = commands
        self._before = before
        self._prompts: PromptSource | None = None
        self._watch = EngineObserver()
        self._measured = LoanMeasurements(workers_per_trainer=context.settings.workers_per_trainer)
        self._switch_costs = SwitchCosts()
        """Of the job's switches inside rounds."""
        self._agreed = False
        """Whether trainer and engine were found to compute the same log-probabilities."""
        self.generation: Generation | None = None
        """The stage in progress."""

    @property
    def first_kind(self) -> RoundKind:
        reference = self._context.settings.choices.reference
        return self._before or (RoundKind.PLAIN if reference.factors is None else RoundKind.SHORT)

    async def run(self) -> None:
        # Generation happens inside a round only.
        await asyncio.Event().wait()

    def notify(self) -> None:
        if self.generation is None:
            return
        if self._commands.interrupted or self._context.fleet.unable_to_start:
            self.generation.interrupt()
        else:
            self.generation.notify()

    async def begin(self, boundary: Boundary, prompts: PromptSource) -> None:
        if self._prompts is None:
            store = self._context.store
            self._watch = EngineObserver(past=await store.do(lambda its: its.speeds(ROUNDS_KEPT)))
            settings, workers = self._context.settings, self._context.settings.workers_per_trainer
            self._switch_costs = await store.do(lambda its: its.rounds.switch_costs(settings.engines))
            self._measured = await store.do(lambda its: its.rounds.loan_measurements(workers, settings.gradients))
        self._prompts = prompts

    async def has_uncommitted_update(self) -> bool:
        return await self._context.store.do(lambda store: store.rounds.is_open())

    async def evaluate(self, boundary: Boundary) -> None:
        assert self._prompts is not None
        await self._evaluation.run_alone(boundary.step, self._prompts)

    async def drain(self) -> None:
        # No replica generates between rounds.
        pass

    async def finish(self) -> None:
        pass

    async def advance(self, boundary: Boundary) -> Boundary:
        assert self._prompts is not None
        clock = RoundTimer(asyncio.get_running_loop().time)
        context = self._context
        draws = PromptSelector(boundary, self._prompts, context.store, context.settings, context.policy_failures)
        opened = await self._open_round(boundary, draws)
        plan = opened.plan
        await self._evaluation.begin(boundary.step, plan.version, self._prompts)
        if not opened.assigned or self._evaluation.needs_weights:
            await self._context.publisher.wait_for_machines(
                plan.version, boundary.step, lambda: self._commands.interrupted
            )
        self._context.reporter.update(
            stage="Generating", kind=plan.shape.kind, progress=0.0, weight_version=plan.version
        )
        self._context.reporter.update(plan=str(draws.chosen.plan), plan_reason=draws.chosen.reason)
        opened = await self._begin_generation(opened)
        clock.start()
        with self._phase("generation", plan.step):
            generation, groups = await self._generate(boundary, opened, draws, clock)
        self._context.reporter.update(stage="Training", progress=1.0)
        async with self._evaluation.during_update():
            evaluates = self._evaluation.evaluator.active
            async with self.profiler.during_update(self._stage(generation, clock.part(0)), needed=evaluates):
                with self._phase("training", plan.step):
                    report = await self._train(opened, groups)
            clock.trained()
        clock.exclude(self._evaluation.evaluator.drain_waited())
        self._context.reporter.update(stage="Publishing")
        with self._phase("weight sync", plan.step):
            version = await self._context.publisher.publish(report.step)
        clock.published()
        return await self._close(boundary, draws, generation, groups, report, clock, version)

    def _stage(self, generation: Generation, seconds: float) -> Stage:
        """Describe a stage that has ended after so many seconds, for profiles during its update."""
        assert self._prompts is not None
        plan = generation.round.plan
        longest = max(len(self._prompts.prompt(prompt).token_ids) for prompt in plan.prompts)
        context = longest + self._context.settings.max_response_tokens
        return Stage(
            step=plan.step,
            responses=len(plan.trajectories()),
            context=context,
            observer=generation.watch,
            costs=self._switch_costs,
            seconds=seconds,
            rounds_left=self._context.follower.rounds - plan.step,
        )

    def _phase(self, name: str, step: int) -> AbstractContextManager[None]:
        return self._context.reporter.timeline.during(ROUNDS, name, round=step)

    async def _open_round(self, boundary: Boundary, draws: PromptSelector) -> OpenRound:
        """Return the open round, or open the next one."""
        opened = await self._context.store.do(lambda store: store.rounds.under_way())
        if opened is not None:
            draws.resume(opened)
            layout = await self._commands.apply(opened.plan.shape.kind, layout=opened.layout)
            return replace(opened, layout=layout)
        opening = await draws.choose(self._context.follower.rounds - boundary.step)
        await self._commands.apply(opening.shape.kind)
        return await draws.open(await self._context.publisher.publish(boundary.step), opening)

    async def _begin_generation(self, opened: OpenRound) -> OpenRound:
        """Return the round with its layout, which is recorded when its generation begins."""
        if opened.layout is not None:
            return opened
        step, size = opened.plan.step, self._context.fleet.tensor_parallel
        await self._context.store.do(lambda store: store.rounds.begin_generation(step, size))
        return replace(opened, layout=RoundLayout(size))

    async def _generate(
        self, boundary: Boundary, opened: OpenRound, draws: PromptSelector, clock: RoundTimer
    ) -> tuple[Generation, tuple[Group, ...]]:
        """Run the stage until there are groups to train on.

        Raises `JobEnded` if no prompt of the round's maximum is trainable."""
        assert self._prompts is not None
        plan, measured, limit = opened.plan, self._measured, self._context.settings.max_response_tokens
        # From the store, so that a restarted coordinator has the same, and a rewind forgets undone rounds.
        measured.lengths = await self._context.store.do(lambda its: its.recent_lengths(LENGTHS_USED, limit))
        if (broadcast := self._context.fleet.weights.broadcast_seconds) is not None:
            measured.broadcast.record(1, broadcast)
        streams = opened.chosen.plan.stream
        most = self._context.settings.stream_tokens if streams else 0
        streaming = Streaming(self._context.trainer, self._context.term, plan.step, plan.version, most, measured)
        rules = self._context.settings.lending if streams else None
        loans = LoanManager(rules, self._context.fleet, streaming, measured, plan.step)
        held: list[Group] = []
        context = GenerationContext(
            coordinator=self._context,
            draws=draws,
            prompts=self._prompts,
            loans=loans,
            evaluator=self._evaluation.evaluator,
            measured=measured,
            switch_costs=self._switch_costs,
            outside=outside_time([] if boundary.report is None else [boundary.report]),
            on_progress=self._progress,
            on_groups=streaming.offer if self._context.settings.fetch_as_they_end else held.extend,
        )
        generation = self.generation = Generation(opened, context)
        generation.watch.continue_from(self._watch)
        self._watch = generation.watch
        self.notify()
        try:
            await generation.run()
            self._context.episodes.cut(generation.round.plan.prompts)
            clock.generated()
            streaming.offer(held)
            clock.stream = await streaming.finish()
            clock.loan = loans.decision
        finally:
            self.generation = None
            await streaming.close()
        groups = generation.responses.groups()
        if not groups:
            failure = untrainable_end(list(generation.round.filtered.values()))
            assert failure is not None, "a complete round without a group has filtered all of its prompts"
            raise JobEnded(failure)
        return generation, groups

    def _progress(self, share: float, stats: GenerationStats) -> None:
        # Set the stage again: a lost trainer has set it to Starting, while generation continues.
        self._context.reporter.update(stage="Generating", progress=round(share, 3), kv_cache_use=round(stats.kv_use, 3))

    async def _train(self, opened: OpenRound, groups: tuple[Group, ...]) -> TrainReport:
        step = opened.plan.step
        # Machines that join now wait for the new weights: the old ones are released before the trainer can answer.
        self._context.fleet.weights.forget()
        if not opened.assigned:
            keys = [scored.response.key for group in groups for scored in group.responses]
            await self._context.store.do(lambda store: store.trajectories.assign(step, keys))
        update = self._context.trainer.call(lambda trainer: trainer.train(self._context.term, step, groups))
        with self._context.reporter.timeline.during(TRAINER, "train", round=step):
            report = await self._context.trainer.lose_if_refused(update, f"step {step} was refused")
        if not self._agreed and (why := engine_mismatch(report.mismatch_kl)):
            raise EngineMismatch(why)
        self._agreed = True
        return report

    async def _close(
        self,
        boundary: Boundary,
        draws: PromptSelector,
        generation: Generation,
        groups: tuple[Group, ...],
        trained: TrainReport,
        clock: RoundTimer,
        version: int,
    ) -> Boundary:
        outcome, plan = generation.round.settle(), generation.round.plan
        queue = draws.queue_after(plan, outcome.with_outcome(PromptOutcome.REQUEUED))
        layout = generation.layout.size, self._context.fleet.layouts.drain_seconds()
        may_switch = self._context.settings.switch_rules is not None
        measured = round_report(
            generation, groups, outcome, len(queue), clock, trained, layout, draws.chosen, may_switch
        )
        totals = totals_after(boundary.totals, measured, len(plan.trajectories()) - len(outcome.kept))
        risen, speeds = self._context.rewards.take_anchors(), generation.watch.speeds()
        known = {LOAN_RATES: self._measured.to_json(self._context.settings.gradients)}
        if self._switch_costs.measured:
            known[SWITCH_COSTS] = self._switch_costs.to_json(self._context.settings.engines)
        timeline, replicas = self._context.reporter.timeline, tuple(self._context.fleet.available())
        activity = round_activity(timeline, clock.span, replicas, synchronous=True)

        with_episode_metrics = self._context.episodes.measure(groups, timeline)

        def close(store: Store) -> Boundary:
            report = with_group_metrics(measured, groups, store.reward_terms(plan.step))
            report = with_episode_metrics(report, store)
            report = with_idle_shares(report, activity)
            closed = Boundary(trained.step, draws.cursor, totals, report, queue)
            store.rounds.close(outcome, closed, risen, speeds, known, self._context.episodes.digests(groups))
            return closed

        closed = await self._context.store.do(close)
        self._context.episodes.drop({key.prompt for key in plan.trajectories()})
        report = closed.report or measured
        self._context.notify_closed(report, trained)
        first, last = await self._context.store.do(lambda store: store.boundaries.reward_ends())
        self._context.reporter.event(
            round=closed.step,
            reward=report.reward,
            reward_first=first,
            reward_last=last,
            tokens_per_second=clock.rate(generation.stats.tokens),
            preemptions=generation.stats.preemptions,
            kv_cache_use=round(generation.stats.kv_use, 3),
            weight_version=version,
            staleness=0.0,
            max_staleness=0,
            deferred_prompts=len(queue),
            last_round=report,
            totals=totals,
        )
        return closed
