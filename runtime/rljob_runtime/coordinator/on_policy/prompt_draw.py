"""Prompt selector: draws a round's prompts from the long-prompt queue and by the cursor.

The store records them before their launch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.on_policy.plan_next_round import choose_plan
from rljob_runtime.coordinator.reporting.policy_failures import PolicyFailures
from rljob_runtime.coordinator.store.records import Boundary, OpenRound
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.protocols import PromptSource
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.round_plan import RestoredSample, RoundPlan
from rljob_runtime.scheduling.round_planner.planner import PlanningHorizon
from rljob_runtime.scheduling.round_planner.plans import DEFAULT_PLAN
from rljob_runtime.scheduling.shares import allot, by_source
from rljob_runtime.scheduling.tail_batching import (
    Factors,
    Opening,
    from_queue,
    next_round_of,
    queue_after,
    replacements,
)


def opening_after(
    boundary: Boundary, settings: Settings, factors: Factors | None, rounds_left: int
) -> tuple[Opening, Cursor]:
    """Return what the round after `boundary` launches, and the cursor that has counted its places."""
    shares, per_round = settings.shares, settings.prompts_per_round
    names, cursor = allot(shares, boundary.cursor, per_round)
    places = dict.fromkeys(shares.weights, 0) | by_source(names)
    waiting = Counter(prompt.source for prompt in boundary.queue)
    later = shares.least(shares.counts(cursor), (rounds_left - 1) * per_round)
    return next_round_of(places, settings.responses_per_prompt, factors, waiting, later), cursor


class PromptSelector:
    """Draws of the round after `boundary`. Call `open` or `resume` first."""

    def __init__(
        self,
        boundary: Boundary,
        prompts: PromptSource,
        store: StoreAccess,
        settings: Settings,
        failures: PolicyFailures,
    ) -> None:
        self._boundary = boundary
        self._prompts = prompts
        self._store = store
        self._settings = settings
        self._failures = failures
        self.cursor = self._counted = boundary.cursor
        self.chosen = DEFAULT_PLAN

    async def choose(self, rounds_left: int) -> Opening:
        """Select the round's plan. Returns what it launches."""
        settings, step = self._settings, self._boundary.step + 1
        horizon = PlanningHorizon(
            settings.prompts_per_round, settings.responses_per_prompt, rounds_left, len(self._boundary.queue)
        )
        self.chosen = await choose_plan(self._store, settings, self._prompts, self._failures, step, horizon)
        factors = self.chosen.plan.factors
        # In the store's thread: a large round has many places to share out.
        opening, self._counted = await self._store.do(
            lambda _: opening_after(self._boundary, self._settings, factors, rounds_left)
        )
        return opening

    async def open(self, version: int, opening: Opening) -> OpenRound:
        """Open the selected round with its first prompts."""
        settings, selected = self._settings, self.chosen
        queued = from_queue(self._boundary.queue, opening.taken)
        self.cursor = self._counted
        fresh = await self._fresh(opening.fresh_of)
        rules = settings.rules(opening.shape)
        plan = RoundPlan(self._boundary.step + 1, version, opening.shape, (*queued, *fresh), rules)
        saved = await self._store.do(lambda store: store.rounds.open(plan, self.cursor, selected))
        return OpenRound(plan, self.cursor, saved, {}, {}, assigned=False, chosen=selected)

    def resume(self, opened: OpenRound) -> None:
        """Continue a round of a former coordinator. Its duration from here on is not comparable with the prediction."""
        self.cursor = opened.cursor
        self.chosen = replace(opened.chosen, seconds=None)

    async def more(
        self, plan: RoundPlan, counts: Mapping[str, int]
    ) -> tuple[tuple[PromptKey, ...], Mapping[TrajectoryKey, RestoredSample]]:
        """Draw further prompts for the open round, so many of each source. Returns them and their records."""
        queued = replacements(plan.shape.kind, self._boundary.queue, plan.prompts, counts)
        taken = Counter(prompt.source for prompt in queued)
        prompts = (*queued, *await self._fresh({name: count - taken[name] for name, count in counts.items()}))
        return prompts, await self._store.do(lambda store: store.rounds.extend(plan, prompts, self.cursor))

    async def _fresh(self, counts: Mapping[str, int]) -> tuple[PromptKey, ...]:
        """Draw prompts by the cursor, so many of each source."""
        drawn: list[PromptKey] = []
        for source, count in counts.items():
            fresh, self.cursor = await self._prompts.take(self.cursor, count, source)
            drawn += fresh
        return tuple(drawn)

    def queue_after(self, plan: RoundPlan, requeued: tuple[PromptKey, ...]) -> tuple[PromptKey, ...]:
        """Return the long-prompt queue after this round."""
        return queue_after(self._boundary.queue, plan.prompts, requeued)
