"""Generation stage of a round: launch, collect tokens, score, abort losers, until the round is complete.

One loop owns all state and processes one event at a time. Pollers (one per replica) and scorers (one per response) only
post events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rljob_runtime.coordinator.core.async_utils import Broken, StageTasks
from rljob_runtime.coordinator.core.errors import Interrupted
from rljob_runtime.coordinator.evaluation.evaluator import Evaluator
from rljob_runtime.coordinator.evaluation.stage import drain
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPolled, ReplicaPool
from rljob_runtime.coordinator.generation.scoring import RewardReceived, RewardRequests
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.generation.token_receiver import TokenReceiver
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.coordinator.on_policy.kv_handover import KvHandovers
from rljob_runtime.coordinator.on_policy.looks import Look, Looks
from rljob_runtime.coordinator.on_policy.prompt_draw import PromptSelector
from rljob_runtime.coordinator.on_policy.switcher import Switcher
from rljob_runtime.coordinator.store.records import OpenRound
from rljob_runtime.coordinator.stream_training.loans import LoanManager
from rljob_runtime.coordinator.stream_training.round_snapshot import snapshot_round
from rljob_runtime.protocols import Delta, GenerateRequest, PromptSource, Replica, ReplicaReport
from rljob_runtime.protocols.reward_stats import RewardStats
from rljob_runtime.protocols.trajectory import (
    Group,
    Lease,
    PromptKey,
    Response,
    ScoredResponse,
    TrajectoryKey,
    sample_seed,
)
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.layout_switch import LayoutSwitch, SwitchLook
from rljob_runtime.scheduling.lending.gain import LoanMeasurements, RoundSnapshot
from rljob_runtime.scheduling.lending.policy import ExpectedLengths
from rljob_runtime.scheduling.partial_responses import DeltaStatus
from rljob_runtime.scheduling.round import Round
from rljob_runtime.scheduling.round_plan import Launch
from rljob_runtime.scheduling.round_planner.survival import LengthObservation, Survival
from rljob_runtime.scheduling.round_samples import SampleState

log = logging.getLogger(__name__)


Event = ReplicaPolled | Broken | RewardReceived | None


@dataclass(frozen=True)
class GenerationContext:
    """What a generation stage works with: the coordinator's parts, and those of its round."""

    coordinator: CoordinatorContext
    draws: PromptSelector
    prompts: PromptSource
    loans: LoanManager
    evaluator: Evaluator
    measured: LoanMeasurements
    switch_costs: SwitchCosts
    on_progress: Callable[[float, GenerationStats], None]
    """Called with the complete share of the round, and the stage's stats."""
    on_groups: Callable[[Sequence[Group]], None]
    """Called with groups as they become complete."""


class Generation:
    """One generation stage, for a single use. `opened`: the round as the store has it."""

    def __init__(self, opened: OpenRound, context: GenerationContext) -> None:
        shared = context.coordinator
        self.round = Round(opened.plan, opened.saved)
        self.responses: dict[TrajectoryKey, Response] = {}
        """All complete responses, kept or not."""
        self.stats = GenerationStats()
        self.watch = EngineObserver(shared.fleet.layout_of)
        self._opened = opened
        assert opened.layout is not None, "generation begins in a layout"
        self.layout = opened.layout
        """The layout of the round, as the store has it."""
        self._draws = context.draws
        self._fleet = shared.fleet
        self._prompts = context.prompts
        self._rewards = shared.rewards
        self._store = shared.store
        self._settings = shared.settings
        self._on_progress = context.on_progress
        self._on_groups = context.on_groups
        self._receiver = TokenReceiver(self.stats)
        self._partials = self._receiver.partials
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._pool = ReplicaPool(
            shared.fleet,
            shared.term,
            shared.settings,
            self.watch,
            self._inbox.put_nowait,
            self._available,
        )
        self.switcher = Switcher(
            shared.switch_policy,
            shared.fleet,
            shared.settings.tensor_parallel_sizes,
            opened.plan.step,
            self.notify,
            context.switch_costs,
        )
        self._looks = Looks(context.loans, self.switcher, shared.apart, self.notify, shared.policy_failures)
        self._kv = KvHandovers(shared.fleet, self._pool, shared.term, context.switch_costs)
        self._tasks = StageTasks(self._inbox.put_nowait)
        self._loans = context.loans
        self._evaluator = context.evaluator
        self._measured = context.measured
        self._episodes = shared.episodes
        self._scoring = RewardRequests(
            shared.episodes.scorer(context.prompts, shared.rewards),
            self.stats,
            self._inbox.put_nowait,
            shared.reporter.timeline,
        )
        self._interrupted = False
        self._fleet_changed = True
        self._step = opened.plan.step
        self._rewards_before = shared.rewards.figures()

    def notify(self) -> None:
        """Check the fleet again: it changed."""
        self._fleet_changed = True
        self._inbox.put_nowait(None)

    def interrupt(self) -> None:
        """Stop soon; `run` raises `Interrupted`."""
        self._interrupted = True
        self.notify()

    async def run(self) -> None:
        """Run until the round is complete.

        Raises `Interrupted`, or `StaleTerm` if another coordinator has taken over."""
        self._restore()
        await self._episodes.load(self.responses)
        flushed = asyncio.get_running_loop().time()
        try:
            # Also without work: a former coordinator may have died before it aborted the losers.
            await self._track_replicas()
            while await self._goes_on():
                if self._interrupted or self._fleet.weights.no_source:
                    await self._stand_down()
                    raise Interrupted
                await self._track_replicas()
                await self._launch()
                await self._launch_evaluations()
                for event in await self._next_events():
                    await self._handle(event)
                self._kv.end_taken(self._waits, self._replica_of, self._partials.length_of)
                await self._abort_losers()
                self._tell_of_groups()
                await self._apply_look()
                await self._look()
                now = asyncio.get_running_loop().time()
                if now - flushed >= self._settings.flush:
                    flushed = now
                    await self._flush()
                self._on_progress(self.round.progress, self.stats)
        finally:
            await self._end_tasks()

    async def _goes_on(self) -> bool:
        """Draw replacements of filtered prompts. Returns whether the round is incomplete."""
        if wanting := self.round.missing_by_source():
            prompts, saved = await self._draws.more(self.round.plan, wanting)
            log.info("round %d draws %d further prompts", self._step, len(prompts))
            self.round.extend(prompts, saved)
        return not self.round.complete

    def groups(self) -> tuple[Group, ...]:
        """Return the groups to train on, in draw order. Only after `run`."""
        return tuple(self._group(prompt) for prompt in self.round.settle().groups)

    def _group(self, prompt: PromptKey) -> Group:
        scored = []
        for key in self.round.places(prompt):
            reward = self.round.reward(key)
            assert reward is not None
            scored.append(ScoredResponse(self.responses[key], float(reward)))
        return self._episodes.group(Group(prompt, tuple(self._prompts.prompt(prompt).token_ids), tuple(scored)))

    def _tell_of_groups(self) -> None:
        """Pass on groups that became final while others still generate; the store has them completely.

        At the round's end the update computes the rest, unless loaned machines share it."""
        if not self.round.complete or self._loans.loaned:
            self._on_groups([self._group(prompt) for prompt in self.round.drain_complete()])

    def reward_figures(self) -> RewardStats:
        """Return the reward statistics of this stage."""
        return self._rewards.figures().since(self._rewards_before)

    def lengths(self) -> list[LengthObservation]:
        """Return the lengths of all launched responses; of running or stopped ones the tokens so far."""
        ended = [LengthObservation(len(response.token_ids)) for response in self.responses.values()]
        return ended + [LengthObservation(tokens, ended=False) for tokens in self.cut_lengths()]

    def cut_lengths(self) -> list[int]:
        """Return the tokens of responses that were stopped before their end."""
        keys = self.round.plan.trajectories()
        return [self._partials.length_of(key) for key in keys if key not in self.responses]

    # --- start and end ---

    def _restore(self) -> None:
        for key, made in self._opened.partials.items():
            self._partials.restore(key, made)
        for key, reason in self._opened.finish_reasons.items():
            response = self.responses[key] = self._partials.close(key, reason)
            if self.round.awaits_reward(key):
                self._scoring.start(response)

    async def _stand_down(self) -> None:
        """Stop the replicas and store everything that they made."""
        # First what was received: replicas may not answer.
        await self._flush()
        await self._evaluator.stop(self._pool)
        await self._stop(self._running(), self._pool.abort)
        await self._flush()

    async def _end_tasks(self) -> None:
        self._kv.close()
        await self._tasks.close()
        await self._pool.close()
        drain(self._inbox, self._evaluator)
        await self._scoring.close()

    # --- replicas ---

    def _available(self) -> dict[str, Replica]:
        replicas = self._fleet.weights.replicas()
        return {name: one for name, one in replicas.items() if machine_of(name) not in self.switcher.machines}

    async def _track_replicas(self) -> None:
        """Requeue responses of replicas that left the fleet."""
        if not self._fleet_changed:
            return
        self._fleet_changed = False
        for name in await self._pool.track(self.round.attempts() | self._evaluator.void()):
            self.round.mark_replica_lost(name)
        self._evaluator.retain(self._pool)
        await self._record_layouts()

    async def _record_layouts(self) -> None:
        """Record which machines have another layout than the round's first one: a restarted coordinator goes on so."""
        switched = dict(self._fleet.layouts.switched)
        if changes := self.layout.changes_to(switched):
            self.layout = replace(self.layout, machines=switched)
            await self._store.do(lambda store: store.rounds.change_layouts(self._step, changes))

    async def _launch(self) -> None:
        names = self._pool.names(without=self._loans.loaned)
        if not names and self._loans.loaned:
            self._loans.end_all()
            names = self._pool.names()
        if not (launches := self.round.launch(names, self.switcher.placement(names, self._partials.length_of))):
            return
        await self._kv.expect(launches)
        version, by_replica = self.round.plan.version, defaultdict(list)
        for launch in launches:
            self._partials.open(launch.key, launch.lease, version)
            by_replica[launch.lease.replica].append(self._request(launch))
        leases = [(launch.key, launch.lease) for launch in launches]
        await self._store.do(lambda store: store.trajectories.launched(self._step, version, leases))
        await self._pool.submit(by_replica)

    async def _launch_evaluations(self) -> None:
        """Start responses of evaluations on replicas that have none of the round."""
        names = self._pool.names(without=self._loans.loaned)
        await self._evaluator.launch(self._pool, {name: self._load(name) for name in names}, urgent=False)

    def _load(self, replica: str) -> int:
        """Return the number of responses of the round that a replica generates."""
        return self._pool.assigned(replica) - self._evaluator.load(replica)

    def _request(self, launch: Launch) -> GenerateRequest:
        prefix, _ = self._partials.tokens_of(launch.key)
        failures = self.round.failures(launch.key)
        seed = sample_seed(self._settings.seed, self._step, launch.key, failures, len(prefix))
        return GenerateRequest(
            key=launch.key,
            attempt=launch.lease.attempt,
            prompt_token_ids=tuple(self._prompts.prompt(launch.key.prompt).token_ids),
            sampling=replace(self._settings.sampling, seed=seed, stop_token_ids=self._prompts.stop_token_ids),
            weight_version=self.round.plan.version,
            prefix_token_ids=prefix,
            kv_file=self._kv.file_of(launch, len(prefix)),
        )

    async def _abort_losers(self) -> None:
        """Abort responses that no longer count. Their tokens are kept: a failed reward frees the place."""
        if aborts := self.round.drain_aborts():
            self.stats.aborted_responses += len(aborts)
            await self._pool.abort(aborts)

    # --- loans and layout switches ---

    async def _look(self) -> None:
        """Have loans and layout switches decided for the round as it is now, if a look is due."""
        look = self._looks.begin(len(self.responses), self._wanted, self._pool.observed)
        if look is not None:
            held_back = self.switcher.held_back()

            def observe() -> SwitchLook:
                waiting = sum(map(self._waits, held_back))
                return look.switch_look(self._snapshot(look), self._held(), waiting)

            seen = await self._looks.observe(look, observe)
            if seen is not None:
                self._tasks.start(self._looks.decide(look, seen), name="look")

    async def _apply_look(self) -> None:
        """Stop the responses of machines that the last look decided to loan or to switch.

        Others continue responses of loaned machines. Those of a machine that switches wait until it generates again."""
        decided = self._looks.take()
        if loaned := self._loans.begin(decided.loan):
            self.watch.record_loan()
            moved = [launch for launch in self._running() if machine_of(launch.lease.replica) in loaned]
            await self._stop(moved, self._pool.abort)
            await self._evaluator.stop(self._pool, lambda replica: machine_of(replica) in loaned)
        switches = []
        for machine, decision in sorted(decided.switches.items()):
            busy = any(self._load(name) for name in self._pool.names() if machine_of(name) == machine)
            if (switch := self.switcher.begin(machine, decision, busy)) is not None:
                switches.append(switch)
        if switches:
            await self._stop_machines(switches)

    async def _stop_machines(self, switches: Sequence[LayoutSwitch]) -> None:
        """Stop and store all that these machines generate, let their replicas leave the pool, and start the switches.

        The machines stop side by side: the stage waits once."""
        since, machines = asyncio.get_running_loop().time(), {switch.machine for switch in switches}
        await self._evaluator.stop(self._pool, lambda replica: machine_of(replica) in machines)
        await self._kv.end(machines)
        stopped = [launch for launch in self._running() if machine_of(launch.lease.replica) in machines]
        await self._stop(stopped, partial(self._kv.stop, switches))
        await self._flush()
        self._fleet_changed = True
        await self._track_replicas()
        waiting = [launch for launch in stopped if self._waits(launch.key)]
        for switch in switches:
            its = [launch.key for launch in waiting if machine_of(launch.lease.replica) == switch.machine]
            self.switcher.start(switch, its, asyncio.get_running_loop().time() - since)

    @property
    def _wanted(self) -> int:
        """Number of responses that the round keeps."""
        return self.round.plan.shape.groups * self.round.plan.shape.group_size

    def _held(self) -> list[tuple[Launch, int]]:
        return [(launch, self._partials.length_of(launch.key)) for launch in self._running()]

    async def _stop(self, stopped: Sequence[Launch], stop: Callable[[Sequence[Launch]], Awaitable[None]]) -> None:
        """Stop these responses and receive all that their replicas made of them. They wait for another launch.

        They keep their leases until then: under another one their tokens would be stale. `stop`: how replicas stop
        them."""
        await stop(stopped)
        before = self.stats.tokens
        await self._pool.collect({launch.lease.replica for launch in stopped})
        while not self._inbox.empty():
            await self._handle(self._inbox.get_nowait())
        self.stats.recovered_tokens += self.stats.tokens - before
        self.round.requeue(launch.key for launch in stopped if self.round.lease(launch.key) == launch.lease)

    def _snapshot(self, look: Look) -> RoundSnapshot:
        curve = Survival.of([*self.lengths(), *self._measured.lengths])
        return snapshot_round(
            self.round,
            self.responses,
            self._running(),
            self._partials,
            self._prompts,
            look.engines,
            ExpectedLengths(curve, self._settings.max_response_tokens),
            look.computed_tokens,
        )

    def _waits(self, key: TrajectoryKey) -> bool:
        return self.round.state(key) is SampleState.WAITING

    def _replica_of(self, key: TrajectoryKey) -> str | None:
        lease = self.round.lease(key)
        return lease.replica if lease is not None else None

    def _running(self) -> list[Launch]:
        """Return the running responses with their leases."""
        keys = self.round.in_state(SampleState.RUNNING)
        return [Launch(key, lease) for key in keys if (lease := self.round.lease(key))]

    # --- events ---

    async def _next_events(self) -> list[Event]:
        """Return all pending events, after waiting for the first."""
        try:
            async with asyncio.timeout(self._settings.flush):
                events = [await self._inbox.get()]
        except TimeoutError:
            return []
        while not self._inbox.empty():
            events.append(self._inbox.get_nowait())
        return events

    async def _handle(self, event: Event) -> None:
        match event:
            case ReplicaPolled(replica, report):
                self.stats.record(replica.name, report)
                report = await self._evaluator.collect(self._pool, replica.name, report)
                await self._collect(replica.name, report)
            case Broken(error):
                raise error
            case RewardReceived(response, None, by_response, cause):
                await self._reward_failed(response, by_response, cause)
            case RewardReceived(response, reward) if reward is not None:
                if self.round.scored(response.key, response.attempt, reward):
                    await self._store.do(lambda store: store.trajectories.score(self._step, response.key, reward))

    async def _collect(self, replica: str, report: ReplicaReport) -> None:
        finished, broken = [], []
        for delta in report.deltas:
            verdict = self._take(replica, delta)
            if verdict is DeltaStatus.FINISHED and delta.finish_reason is not None:
                finished.append(self._partials.close(delta.key, delta.finish_reason))
            elif verdict in (DeltaStatus.GAP, DeltaStatus.WRONG_VERSION):
                log.warning("%s from %s: %s; launching it again", delta.key, replica, verdict)
                broken.append(Launch(delta.key, Lease(replica, delta.attempt)))
        if broken:
            self.round.requeue(launch.key for launch in broken)
            await self._pool.abort(broken)
        if finished:
            await self._finish(finished)

    def _take(self, replica: str, delta: Delta) -> DeltaStatus:
        """Check one delta and keep its new tokens."""
        lease = Lease(replica, delta.attempt)
        verdict = self._receiver.accept(delta, lease, self.round.lease(delta.key))
        if verdict is DeltaStatus.FINISHED and not self.round.generated(delta.key, lease):
            return DeltaStatus.STALE
        if verdict in (DeltaStatus.ACCEPTED, DeltaStatus.FINISHED):
            self.switcher.record_tokens(replica)
        return verdict

    async def _finish(self, finished: list[Response]) -> None:
        tokens = self._receiver.drain_unsaved()
        await self._store.do(lambda store: store.trajectories.finish(self._step, tokens, finished))
        for response in finished:
            self.responses[response.key] = response
            self._scoring.start(response)

    async def _reward_failed(self, response: Response, by_response: bool, cause: str) -> None:
        """Abort the sample, never score it 0: it is generated again, or its group is filtered."""
        key = response.key
        if not self.round.reward_failed(key, response.attempt, by_response):
            return
        self.stats.aborted_samples += 1
        self.stats.lost_tokens += len(self.responses.pop(key).token_ids)
        failures = self.round.failures(key)
        await self._store.do(lambda store: store.trajectories.restart(self._step, key, failures, cause))
        if key.prompt in self.round.filtered:
            why = "a reward cannot score one of its responses" if by_response else "its rewards keep failing"
            log.warning("prompt %s is filtered: %s", key.prompt, why)

    async def _flush(self) -> None:
        tokens = self._receiver.drain_unsaved()
        if tokens:
            await self._store.do(lambda store: store.trajectories.append(self._step, tokens))
