"""Idle profiler: has resting machines measure layouts that they never ran, while the trainer updates.

A policy (`scheduling/adaptive_tp/idle_profile.py`) decides once an update which machine visits which layout. Visits run
beside the update and end with it: what they measured until then counts. One that may outlast it measures for some
seconds in any case, and the next stage waits. They never take part in a round, and a failure is that of its machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rljob_runtime.coordinator.fleet.machine import RolloutMachine
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.observed_engines import engine_speed
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.coordinator.reporting.policy_failures import OptionalPolicy, attempt
from rljob_runtime.protocols import EngineProfile, PeerError, StaleTerm
from rljob_runtime.scheduling.adaptive_tp.idle_profile import (
    UPDATES,
    IdleOutcome,
    IdleProfile,
    OverrunBudget,
    Rest,
    RestingMachine,
    is_enough,
    limits_of,
    plan_profiles,
)
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchRules
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.layouts.layout_switch import record_probes, record_visit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """The stage before an update. `context`: tokens of its longest possible response with its prompt.

    `observer`: of its engines; it receives what is measured. `costs`: of the job's switches. `seconds`: of its
    generation. `rounds_left`: after it."""

    step: int
    responses: int
    context: int
    observer: EngineObserver
    costs: SwitchCosts
    seconds: float
    rounds_left: int


@dataclass
class _Update:
    """An update in progress. `machines`: those that rest, as `plans` has them; `version`: of their weights."""

    stage: Stage
    version: int
    began: float
    machines: Mapping[str, RolloutMachine]
    plans: Mapping[str, IdleProfile]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    ended_at: float = math.inf

    def end(self, now: float) -> None:
        self.ended_at = now
        self.ended.set()


class IdleProfiler:
    """The profiles of a job whose machines switch their size by rules; none in other jobs."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._fleet = context.fleet
        self._term = context.term
        self._rules = context.settings.switch_rules
        self._failures = context.policy_failures
        self._updates: deque[float] = deque(maxlen=UPDATES)
        self._tries: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._stages = 0
        self._generated = self._updated = 0.0
        """Seconds of the generation of these stages, and of their updates."""
        self._overrun = 0.0
        """Seconds by which visits outlasted updates: predicted ones, or measured ones if those are more."""

    @contextlib.asynccontextmanager
    async def during_update(self, stage: Stage, needed: bool) -> AsyncIterator[None]:
        """Profile during the block. `needed`: whether machines generate meanwhile.

        Machines that are not back at its end return in the background. New weights wait for them."""
        clock = asyncio.get_running_loop().time
        since = clock()
        self._stages += 1
        self._generated += stage.seconds
        update = None if needed or self._rules is None else self._begin(stage, self._rules, since)
        try:
            yield
            self._updates.append(clock() - since)
            self._updated += clock() - since
        finally:
            if update is not None:
                update.end(clock())

    def _begin(self, stage: Stage, rules: SwitchRules, now: float) -> _Update | None:
        """Begin the visits of an update; None if there is none."""
        weights = self._fleet.weights
        if (version := weights.version) is None or not self._failures.is_asked(OptionalPolicy.PROFILES):
            return None
        machines = {machine.name: machine for machine in weights.loaded() if not machine.loaned}
        plans = attempt(partial(self._plan, machines, rules, stage))
        if isinstance(plans, Exception):
            self._failures.failed(OptionalPolicy.PROFILES, plans)
            return None
        self._failures.decided(OptionalPolicy.PROFILES)
        update = _Update(stage, version, now, machines, plans)
        for name, plan in plans.items():
            if plan.size is not None:
                self._overrun += plan.overrun
                self._fleet.run_in_background(self._visit(update, machines[name], plan, plan.size))
        return update

    def _plan(
        self, machines: Mapping[str, RolloutMachine], rules: SwitchRules, stage: Stage
    ) -> Mapping[str, IdleProfile]:
        layouts = self._fleet.layouts
        resting = [
            RestingMachine(
                name,
                machine.tensor_parallel,
                rules.sizes - frozenset(layouts.refused(name)),
                layouts.ran(name),
                layouts.built(name),
                self._tries[name],
            )
            for name, machine in machines.items()
        ]
        known = [size for size, speeds in stage.observer.all_speeds().items() if engine_speed(speeds) is not None]
        rest = Rest(tuple(self._updates), self._fleet.weights.visits.unforeseen, layouts.build_seconds)
        return plan_profiles(resting, known, rest, stage.costs, self._budget(stage))

    def _budget(self, stage: Stage) -> OverrunBudget:
        left = stage.rounds_left * self._generated / self._stages
        return OverrunBudget(self._generated + self._updated, self._overrun, left)

    async def _visit(self, update: _Update, machine: RolloutMachine, plan: IdleProfile, size: int) -> None:
        clock, start, stage = asyncio.get_running_loop().time, machine.tensor_parallel, update.stage
        since, profiles = clock(), dict[str, EngineProfile]()

        async def measure() -> None:
            profiles.update(await self._measure(update, machine, plan))

        name, may_overrun = f"profile TP {size}", plan.outcome is IdleOutcome.OVERRUNS
        if may_overrun:
            why = "no machine has shown its speed, and no update is long enough"
            log.info("round %d: %s may outlast the update by %.1f s: %s", stage.step, name, plan.overrun, why)
        self._tries[machine.name][size] += 1
        with self._fleet.timeline.during(f"{machine.name}/machine", name, round=stage.step):
            visit = await self._fleet.weights.visit_layout(machine, size, update.version, measure, may_overrun)
        self._overrun += max(0.0, clock() - update.ended_at - plan.overrun)
        if visit.reached:
            record_visit(stage.costs, start, size, visit.there, visit.back)
        record_probes(stage.costs, start, size, [profile.moved for profile in profiles.values()])
        enough = {replica: profile for replica, profile in profiles.items() if is_enough(profile.timings)}
        if enough:
            stage.observer.record_profile(size, enough)
            self._tries[machine.name][size] = 0
        loads = sum(len(profile.timings) for profile in profiles.values())
        self._fleet.weights.visits.record(loads, clock() - since)
        log.info("round %d: %s measured %d loads in TP %d; %s", stage.step, machine.name, loads, size, visit)

    async def _measure(
        self, update: _Update, machine: RolloutMachine, plan: IdleProfile
    ) -> Mapping[str, EngineProfile]:
        """Profile all engines of a machine side by side until the time is over, or the update ends."""
        stage, replicas = update.stage, machine.replicas
        seconds = update.began + plan.until - asyncio.get_running_loop().time()
        if seconds <= 0 or (update.ended.is_set() and not plan.least_seconds):
            return {}
        limits = limits_of(stage.responses, len(update.machines) * len(replicas), stage.context, seconds)
        running = asyncio.ensure_future(
            asyncio.gather(*(machine.run_while_member(replica.profile(self._term, limits)) for replica in replicas))
        )
        ended = asyncio.ensure_future(_may_end(update, plan))
        tasks: list[asyncio.Future[Any]] = [running, ended]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                # Any command ends a profile.
                await asyncio.gather(*(machine.run_while_member(replica.abort(self._term, {})) for replica in replicas))
            profiles = await running
        except StaleTerm:
            raise
        except PeerError as error:
            self._fleet.mark_machine_lost(machine, "CommandFailed", error)
            return {}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return {replica.name: profile for replica, profile in zip(replicas, profiles, strict=True)}


async def _may_end(update: _Update, plan: IdleProfile) -> None:
    """Wait until a profile that begins now has to end: with the update, and after the least that it may measure."""
    await asyncio.gather(update.ended.wait(), asyncio.sleep(plan.least_seconds))
