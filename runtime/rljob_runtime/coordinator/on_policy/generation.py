"""Generation stage of a round: launches responses and handles events, until the round is complete.

One loop owns all state and processes one event at a time. Pollers (one per replica) and scorers (one per response) only
post events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rljob_runtime.coordinator.core.async_utils import Broken, StageTasks
from rljob_runtime.coordinator.core.errors import Interrupted
from rljob_runtime.coordinator.evaluation.evaluator import Evaluator
from rljob_runtime.coordinator.evaluation.stage import drain
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.inbox import Inbox
from rljob_runtime.coordinator.generation.observed_engines import ObservedEngines
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPolled, ReplicaPool
from rljob_runtime.coordinator.generation.requests import Requests
from rljob_runtime.coordinator.generation.scoring import RewardReceived
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.coordinator.on_policy.kv_handover import KvHandovers
from rljob_runtime.coordinator.on_policy.looks import Looks
from rljob_runtime.coordinator.on_policy.prompt_draw import PromptSelector
from rljob_runtime.coordinator.on_policy.round_responses import RoundResponses
from rljob_runtime.coordinator.on_policy.stops import MachineStopped, Stops
from rljob_runtime.coordinator.on_policy.switcher import Switcher
from rljob_runtime.coordinator.store.records import OpenRound
from rljob_runtime.coordinator.stream_training.loans import LoanManager
from rljob_runtime.perf_model.outside_time import OutsideTime
from rljob_runtime.protocols import GenerateRequest, PromptSource, Replica
from rljob_runtime.protocols.trajectory import (
    Group,
)
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.layouts.layout_switch import SwitchLook, expected_of
from rljob_runtime.scheduling.lending.gain import LoanMeasurements
from rljob_runtime.scheduling.round_plan import Launch

log = logging.getLogger(__name__)


Event = ReplicaPolled | MachineStopped | Broken | RewardReceived | None


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
    outside: OutsideTime
    """Of the responses of the round before."""
    on_progress: Callable[[float, GenerationStats], None]
    """Called with the complete share of the round, and the stage's stats."""
    on_groups: Callable[[Sequence[Group]], None]
    """Called with groups as they become complete."""


class Generation:
    """One generation stage, for a single use. `opened`: the round as the store has it."""

    def __init__(self, opened: OpenRound, context: GenerationContext) -> None:
        shared = context.coordinator
        self.stats = GenerationStats()
        self.watch = EngineObserver(shared.fleet.layout_of)
        assert opened.layout is not None, "generation begins in a layout"
        self.layout = opened.layout
        """The layout of the round, as the store has it."""
        self._step = opened.plan.step
        self._draws = context.draws
        self._fleet = shared.fleet
        self._store = shared.store
        self._episodes = shared.episodes
        self._flush_seconds = shared.settings.flush
        self._on_progress = context.on_progress
        self._on_groups = context.on_groups
        self._loans = context.loans
        self._evaluator = context.evaluator
        self._measured = context.measured
        self._outside = context.outside
        self._inbox: Inbox[Event] = Inbox()
        post = self._inbox.post
        self._tasks = StageTasks(post)
        self._pool = ReplicaPool(shared.fleet, shared.term, shared.settings, self.watch, post, self._available)
        sizes, costs = shared.settings.tensor_parallel_sizes, context.switch_costs
        self.switcher = Switcher(shared.switch_policy, shared.fleet, sizes, opened, self.notify, costs)
        rounds = shared.follower.rounds - opened.plan.step + 1
        self._looks = Looks(context.loans, self.switcher, shared.apart, self.notify, shared.policy_failures, rounds)
        self._kv = KvHandovers(shared.fleet, self._pool, shared.term, costs)
        self.responses = RoundResponses(opened, shared, context.prompts, self.stats, post, self.switcher.record_tokens)
        self.round = self.responses.round
        self._requests = Requests(shared.settings, context.prompts, self.responses.partials)
        self._stops = Stops(
            fleet=shared.fleet,
            pool=self._pool,
            responses=self.responses,
            stats=self.stats,
            evaluator=context.evaluator,
            loans=context.loans,
            switcher=self.switcher,
            kv=self._kv,
            observer=self.watch,
            post=post,
            handle_pending=self._handle_pending,
            track=self._track_again,
        )
        self._interrupted = False
        self._fleet_changed = True

    def notify(self) -> None:
        """Check the fleet again: it changed."""
        self._fleet_changed = True
        self._inbox.post(None)

    def interrupt(self) -> None:
        """Stop soon; `run` raises `Interrupted`."""
        self._interrupted = True
        self.notify()

    async def run(self) -> None:
        """Run until the round is complete.

        Raises `Interrupted`, or `StaleTerm` if another coordinator has taken over."""
        await self.responses.restore()
        flushed = asyncio.get_running_loop().time()
        try:
            while await self._goes_on():
                if self._interrupted or self._fleet.weights.no_source:
                    await self._stops.everything()
                    await self._record_layouts()
                    raise Interrupted
                await self._track_replicas()
                await self._launch()
                await self._launch_evaluations()
                for event in await self._inbox.next(self._flush_seconds):
                    await self._handle(event)
                self.switcher.end_prefills(self.round.lease)
                self._kv.end_taken(self.responses.waits, self.responses.replica_of, self.responses.partials.length_of)
                await self._abort_losers()
                self._tell_of_groups()
                await self._stops.apply(self._looks.take())
                await self._look()
                now = asyncio.get_running_loop().time()
                if now - flushed >= self._flush_seconds:
                    flushed = now
                    await self.responses.flush()
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

    def _tell_of_groups(self) -> None:
        """Pass on groups that became final while others still generate; the store has them completely.

        At the round's end the update computes the rest, unless loaned machines share it."""
        if not self.round.complete or self._loans.loaned:
            self._on_groups(self.responses.groups_of(self.round.drain_complete()))

    async def _end_tasks(self) -> None:
        self.switcher.end_prefills(lambda key: None)
        self._kv.close()
        await self._tasks.close()
        await self._pool.close()
        drain(self._inbox, self._evaluator)
        await self.responses.close()

    # --- replicas ---

    def _available(self) -> dict[str, Replica]:
        replicas = self._fleet.weights.replicas()
        switching = self.switcher.machines - self.switcher.stopping.keys()
        return {name: one for name, one in replicas.items() if machine_of(name) not in switching}

    def _launchable(self) -> list[str]:
        """Return the replicas that may take requests now."""
        return self._pool.names(without=self._loans.loaned | self.switcher.stopping.keys())

    async def _track_replicas(self) -> None:
        """Requeue responses of replicas that left the fleet."""
        if not self._fleet_changed:
            return
        self._fleet_changed = False
        for name in await self._pool.track(self.round.attempts() | self._evaluator.void()):
            self.round.mark_replica_lost(name)
        self._evaluator.retain(self._pool)
        await self._record_layouts()

    async def _track_again(self) -> None:
        """Track replicas now: machines that switch make theirs leave."""
        self._fleet_changed = True
        await self._track_replicas()

    async def _record_layouts(self) -> None:
        """Record which machines have another layout than the round's first one: a restarted coordinator goes on so.

        It continues to count switches, too."""
        changes, switches = self.layout.changes_to(dict(self._fleet.layouts.switched)), self.switcher.counts()
        if changes or switches != self.layout.switches:
            self.layout = replace(self.layout.changed(changes), switches=switches)
            await self._store.do(lambda store: store.rounds.change_layouts(self._step, changes, switches))

    async def _launch(self) -> None:
        names = self._launchable()
        # A machine that switches generates soon, and has the responses that it stopped.
        if not names and self._loans.loaned and not self.switcher.under_way():
            self._loans.end_all()
            names = self._launchable()
        launches = self.round.launch(names, self.switcher.placement(names, self.responses.running_of))
        self.switcher.record_launches(launches)
        if not launches:
            return
        await self._kv.expect(launches)
        version, by_replica = self.round.plan.version, defaultdict(list)
        for launch in launches:
            self.responses.partials.open(launch.key, launch.lease, version)
            by_replica[launch.lease.replica].append(self._request(launch))
        leases = [(launch.key, launch.lease) for launch in launches]
        await self._store.do(lambda store: store.trajectories.launched(self._step, version, leases))
        await self._pool.submit(by_replica)

    async def _launch_evaluations(self) -> None:
        """Start responses of evaluations on replicas that have none of the round."""
        names = self._launchable()
        await self._evaluator.launch(self._pool, {name: self._stops.load(name) for name in names}, urgent=False)

    def _request(self, launch: Launch) -> GenerateRequest:
        key, round_ = launch.key, self.round
        file = self._kv.file_of(launch, self.responses.partials.length_of(key))
        return self._requests.of(launch, round_.plan.version, self._step, round_.failures(key), file)

    async def _abort_losers(self) -> None:
        """Abort responses that no longer count. Their tokens are kept: a failed reward frees the place."""
        if aborts := self.round.drain_aborts():
            self.stats.aborted_responses += len(aborts)
            await self._pool.drop(aborts)
            # Those that race again meanwhile have an engine, and keep their runners.
            self._episodes.release(launch.key for launch in aborts)

    # --- loans and layout switches ---

    async def _look(self) -> None:
        """Have loans and layout switches decided for the round as it is now, if a look is due."""
        responses = self.responses
        look = self._looks.begin(len(responses.ended), responses.wanted, self._observed)
        if look is not None:
            # A switch may end while the round is described.
            switches = self.switcher.under_way()

            def observe() -> SwitchLook:
                expected = expected_of(switches, responses.waits, responses.running_of)
                lengths = self._measured.lengths
                round_ = responses.snapshot(look.engines, look.computed_tokens, lengths, expected.replicas)
                return look.switch_look(round_, responses.held(), expected.sizes)

            seen = await self._looks.observe(look, observe)
            if seen is not None:
                self._tasks.start(self._looks.decide(look, seen), name="look")

    def _observed(self) -> ObservedEngines:
        """Return what was observed of the engines. The requests that wait there may be those of an evaluation.

        They hold up no switch, which stops them."""
        engines, load = self._pool.observed(), self._evaluator.load
        waiting = {name: max(0, count - load(name)) for name, count in engines.waiting.items()}
        return replace(engines, waiting=waiting, outside=self._outside)

    # --- events ---

    async def _handle_pending(self) -> None:
        for event in self._inbox.drain():
            await self._handle(event)

    async def _handle(self, event: Event) -> None:
        match event:
            case ReplicaPolled(replica, report, last):
                before = self.stats.tokens
                self.stats.record(replica.name, report)
                report = await self._evaluator.collect(self._pool, replica.name, report)
                await self.responses.collect(replica.name, report, self._pool)
                self.switcher.record_stats(replica.name, report.stats)
                self.stats.recovered_tokens += self.stats.tokens - before if last else 0
            case MachineStopped():
                await self._stops.go_on(event)
            case Broken(error):
                raise error
            case RewardReceived():
                await self.responses.receive_reward(event)
