"""Evaluator: generates and scores the responses of the evaluations of one boundary.

A stage of generation hosts it: the stage offers replicas, and passes on what they return. Requests continue from one
stage to the next. Before newer weights reach replicas, the training loop waits for the evaluations of the older ones.
Rewards arrive in a task of the evaluator's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from rljob_runtime.coordinator.core.async_utils import Broken
from rljob_runtime.coordinator.evaluation.work import EvaluationInProgress, EvaluationWork, sample_of
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.coordinator.generation.scoring import RewardReceived, RewardRequests
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.generation.token_receiver import TokenReceiver
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.coordinator.reporting.timeline import EVALUATION, ROUNDS
from rljob_runtime.coordinator.store.connection import ATTEMPTS_A_TERM
from rljob_runtime.coordinator.store.evaluations import EvaluatedSample
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.evaluation import EvaluationTimes
from rljob_runtime.protocols import Delta, GenerateRequest, PromptSource, Replica, ReplicaReport
from rljob_runtime.protocols.trajectory import Lease, TrajectoryKey
from rljob_runtime.scheduling.evaluation import (
    EvaluationProgress,
    ReplicaLoad,
    evaluation_seed,
    is_due,
    spare_room,
)
from rljob_runtime.scheduling.partial_responses import DeltaStatus
from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round_plan import Launch

log = logging.getLogger(__name__)

ABANDONED = "EvaluationAbandoned"
"""Reason of the warning about an evaluation without a result."""


class Evaluator:
    """The evaluations of one coordinator. `on_change` is called when those under way have ended."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self._work: EvaluationWork | None = None
        self._inbox: asyncio.Queue[RewardReceived | Broken] = asyncio.Queue()
        self._pool: ReplicaPool | None = None
        """The pool of the last launch: it counts what its replicas have been given."""
        self._replicas: dict[str, Replica] = {}
        """Replicas with requests, by name: a process that replaced one of them holds none."""
        self._last_attempt = context.term * ATTEMPTS_A_TERM
        """No replica was given a higher one, by this coordinator or an earlier one."""
        self._repeated = False
        self._clock = asyncio.get_running_loop().time
        self._idle_seconds = 0.0
        self._idle: tuple[float, int] | None = None
        """Time of the last look, and the replicas that generated for evaluations only."""
        self._waiting_since: float | None = None
        self._waited_seconds = 0.0
        self.on_change: Callable[[], None] = lambda: None

    @property
    def active(self) -> bool:
        """Whether an evaluation has not ended."""
        return self._work is not None

    @property
    def version(self) -> int | None:
        """The weight version of the evaluations under way."""
        return self._work.version if self._work is not None else None

    def load(self, replica: str) -> int:
        """Return the number of responses that a replica generates for evaluations."""
        return self._work.progress.load(replica) if self._work is not None else 0

    def void(self) -> dict[TrajectoryKey, int]:
        """Return the attempts that no replica shall generate, those of earlier coordinators among them."""
        return self._work.progress.void() if self._work is not None else {}

    # --- from the training loop ---

    def is_due(self, step: int, rounds: int) -> bool:
        """Return whether any evaluation is due after `step` of `rounds` updates."""
        return any(is_due(one.every_rounds, step, rounds) for one in self._context.settings.evaluations)

    async def begin(self, step: int, version: int, prompts: PromptSource, rounds: int) -> None:
        """Begin the evaluations that are due after `step` of `rounds` updates, or continue them.

        `version`: the weights of this step.
        """
        await self.close()
        first = not self._repeated
        await self._repeat_last_results()
        due = [one for one in self._context.settings.evaluations if is_due(one.every_rounds, step, rounds)]
        if not due and not first:
            return
        # The first time also without any: a former coordinator may have left responses that are never continued.
        settings = {one.name: one.digest for one in due}
        opened = {one.name: one for one in await self._context.store.do(lambda s: s.evaluations.open(step, settings))}
        found = {one.name: EvaluationInProgress.of(one, opened[one.name], prompts) for one in due if one.name in opened}
        if not found:
            return
        await self._drop(step, {name: one.uncounted(opened[name]) for name, one in found.items()})
        self._context.reporter.problem(ABANDONED, None)
        keys = [key for one in found.values() for key in one.missing(step)]
        self._idle_seconds, self._idle = 0.0, None
        self._work = EvaluationWork(
            step=step,
            version=version,
            prompts=prompts,
            open=found,
            drawn=frozenset(key.prompt for key in keys),
            progress=EvaluationProgress(keys, self._last_attempt + 1, self._context.settings.reward_failures),
            receiver=TokenReceiver(GenerationStats()),
            scoring=RewardRequests(
                self._context.episodes.scorer(prompts, self._context.rewards),
                GenerationStats(),
                self._inbox.put_nowait,
                self._context.reporter.timeline,
            ),
            began=self._clock(),
        )
        await self._close_complete(self._work)

    async def _drop(self, step: int, uncounted: Mapping[str, Sequence[EvaluatedSample]]) -> None:
        def drop(store: Store) -> None:
            for name, samples in uncounted.items():
                store.evaluations.drop(step, name, samples)

        if any(uncounted.values()):
            await self._context.store.do(drop)

    async def abandon(self, why: str) -> None:
        """End the evaluations under way without a result, and warn. `why`: a clause."""
        if (work := self._work) is None:
            return
        names = tuple(work.open)
        # A reward that arrives meanwhile finds nothing open.
        work.open.clear()

        def save(store: Store) -> None:
            for name in names:
                store.evaluations.abandon(work.step, name, why)

        await self._context.store.do(save)
        self._context.warn(
            ABANDONED, f"evaluation {', '.join(names)} of the weights after round {work.step} has no result: {why}"
        )
        await self.close()

    @contextlib.asynccontextmanager
    async def waited_for(self) -> AsyncIterator[None]:
        """Count the time of the block as time for which training waits for the evaluations under way.

        A cancelled block stores nothing: a coordinator that ends does not wait for its store.
        """
        self._count_idle({})
        self._waiting_since = self._clock()
        try:
            with self._context.reporter.timeline.during(ROUNDS, "wait for evaluations"):
                yield
        except Exception:
            await self._end_wait()
            raise
        except BaseException:
            self._waiting_since = None
            raise
        await self._end_wait()

    async def _end_wait(self) -> None:
        seconds, self._waiting_since = self._waited(), None
        self._waited_seconds += seconds
        if (work := self._work) is None:
            return
        for one in work.open.values():
            one.waited += seconds
        await self._context.store.do(lambda store: store.evaluations.add_wait(work.step, seconds))

    async def close(self) -> None:
        """End the work in memory; `begin` continues it. Its responses stop, so that replicas can load other weights."""
        if (work := self._work) is None:
            return
        self._work = None
        self._last_attempt = max(self._last_attempt, work.progress.highest_attempt)
        await work.scoring.close()
        if self._pool is not None:
            await self._pool.abort(work.progress.running())
        self._context.episodes.drop(work.drawn)
        self._replicas.clear()
        self.on_change()

    def drain_waited(self) -> float:
        """Return the seconds for which training has waited since the last call: no part of a round."""
        seconds, self._waited_seconds = self._waited_seconds, 0.0
        return seconds

    # --- from the stage that hosts it ---

    def retain(self, pool: ReplicaPool) -> None:
        """Return responses to the queue whose replicas have left the pool."""
        if self._work is not None:
            running = self._work.progress.running()
            gone = [one.key for one in running if not self._still_in(pool, one.lease.replica)]
            self._work.progress.requeue(gone)

    async def launch(self, pool: ReplicaPool, training: Mapping[str, int], urgent: bool) -> None:
        """Start responses on the replicas of `training`, which hold the weights.

        `training`: their unfinished responses of training. Only idle replicas start any, unless it is `urgent`.
        """
        if (work := self._work) is None:
            return
        loads = {name: ReplicaLoad(count, work.progress.load(name)) for name, count in training.items()}
        self._count_idle(loads)
        launches = work.progress.launch(spare_room(loads, work.progress.waiting, urgent))
        if not launches:
            return
        self._pool, requests = pool, defaultdict(list)
        for launch in launches:
            name = launch.lease.replica
            work.receiver.partials.forget(launch.key)
            work.receiver.partials.open(launch.key, launch.lease, work.version)
            requests[name].append(self._request(work, launch))
            if (replica := pool.replica(name)) is not None:
                self._replicas[name] = replica
        await pool.submit(requests)

    async def collect(self, pool: ReplicaPool, replica: str, report: ReplicaReport) -> ReplicaReport:
        """Take the tokens of evaluations from a poll. Returns the report without them."""
        report, strays = self.take(replica, report)
        if strays:
            await pool.abort(strays)
        return report

    def take(self, replica: str, report: ReplicaReport) -> tuple[ReplicaReport, list[Launch]]:
        """Take the tokens of evaluations from a poll.

        Returns the report without them, and the attempts that the replica shall stop.
        """
        ours = [delta for delta in report.deltas if delta.key.prompt.evaluation is not None]
        if not ours:
            return report, []
        theirs = tuple(delta for delta in report.deltas if delta.key.prompt.evaluation is None)
        strays = [launch for delta in ours if (launch := self._accept(replica, delta)) is not None]
        return replace(report, deltas=theirs), strays

    async def stop(self, pool: ReplicaPool, machine: Callable[[str], bool] = lambda replica: True) -> None:
        """Stop the running responses on the replicas that `machine` selects. They start again later."""
        if self._work is not None:
            keys = [one.key for one in self._work.progress.running() if machine(one.lease.replica)]
            await pool.abort(self._work.progress.requeue(keys))

    # --- its task ---

    async def run(self) -> None:
        """Record rewards as they arrive, until cancelled."""
        try:
            while True:
                event = await self._inbox.get()
                if isinstance(event, Broken):
                    raise event.error
                await self._record(event)
        finally:
            if self._work is not None:
                await self._work.scoring.close()

    async def _record(self, event: RewardReceived) -> None:
        response, work = event.response, self._work
        name = response.key.prompt.evaluation
        if work is None or name not in work.open or response.weight_version != work.version:
            return
        failure = event.reward if isinstance(event.reward, RewardFailure) else None
        if failure and work.progress.reward_failed(response.key, failure):
            if failure.aborted:
                work.progress.restart(response.key)
                self.on_change()
            else:
                work.scoring.start(response)
            return
        if not work.progress.settle(response.key):
            return
        sample = sample_of(response, event.reward)
        work.open[name].samples.append(sample)
        await self._context.store.do(
            lambda store: store.evaluations.record(work.step, name, sample, response, failure.cause if failure else "")
        )
        await self._close_complete(work)

    # --- details ---

    async def _repeat_last_results(self) -> None:
        """Pass the results of the newest step to the observers again, once.

        An earlier coordinator may have died between recording and passing on.
        """
        if self._repeated:
            return
        self._repeated = True
        results = await self._context.store.do(lambda store: store.evaluations.results())
        for result in results:
            if result.round == results[-1].round:
                self._context.notify_evaluated(result)

    def _still_in(self, pool: ReplicaPool, name: str) -> bool:
        replica = pool.replica(name)
        return replica is not None and replica is self._replicas.get(name)

    def _accept(self, replica: str, delta: Delta) -> Launch | None:
        """Keep the tokens of a delta. Returns the attempt if the replica shall stop it."""
        lease, work = Lease(replica, delta.attempt), self._work
        if work is None or work.progress.lease(delta.key) != lease:
            return Launch(delta.key, lease)
        status = work.receiver.accept(delta, lease, lease)
        work.receiver.drain_unsaved()
        if status is DeltaStatus.FINISHED and delta.finish_reason is not None:
            work.progress.generated(delta.key, lease)
            work.scoring.start(work.receiver.partials.close(delta.key, delta.finish_reason))
        elif status in (DeltaStatus.GAP, DeltaStatus.WRONG_VERSION):
            log.warning("%s from %s: %s; launching it again", delta.key, replica, status)
            work.progress.requeue([delta.key])
            return Launch(delta.key, lease)
        return None

    def _request(self, work: EvaluationWork, launch: Launch) -> GenerateRequest:
        name = launch.key.prompt.evaluation
        assert name is not None
        return GenerateRequest(
            key=launch.key,
            attempt=launch.lease.attempt,
            prompt_token_ids=tuple(work.prompts.prompt(launch.key.prompt).token_ids),
            sampling=replace(
                work.open[name].settings.sampling,
                seed=evaluation_seed(self._context.settings.seed, launch.key),
                stop_token_ids=work.prompts.stop_token_ids,
            ),
            weight_version=work.version,
        )

    def _count_idle(self, loads: Mapping[str, ReplicaLoad]) -> None:
        now = self._clock()
        if self._idle is not None:
            since, replicas = self._idle
            self._idle_seconds += (now - since) * replicas
        idle = sum(one.evaluation > 0 and not one.training for one in loads.values())
        self._idle = now, idle if self._waiting_since is None else 0

    def _waited(self) -> float:
        return self._clock() - self._waiting_since if self._waiting_since is not None else 0.0

    async def _close_complete(self, work: EvaluationWork) -> None:
        """Record the result of each evaluation that is complete."""
        for name in [name for name, one in work.open.items() if one.complete]:
            one = work.open.pop(name)
            times = EvaluationTimes(
                seconds=round(self._clock() - work.began, 3),
                idle_seconds=round(self._idle_seconds, 3),
                waiting_seconds=round(one.waited + self._waited(), 3),
            )
            result = one.result(work.step, work.version, times)
            text = result.to_json()

            def save(store: Store, name: str = name, text: str = text) -> bool:
                return store.evaluations.close(work.step, name, text)

            if not await self._context.store.do(save):
                continue
            self._context.reporter.timeline.span(EVALUATION + name, "evaluation", work.began, round=work.step)
            self._context.notify_evaluated(result)
        if not work.open and self._work is work:
            await self.close()
