"""Prompt selector: draws a round's prompts from the long-prompt queue and by the cursor.

The store records them before their launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.on_policy.plan_next_round import choose_plan
from rljob_runtime.coordinator.store.records import Boundary, OpenRound
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.protocols import PromptSource
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.scheduling.round_plan import RestoredSample, RoundPlan
from rljob_runtime.scheduling.round_planner.plans import DEFAULT_PLAN
from rljob_runtime.scheduling.tail_batching import Opening, next_round, queue_after, replacements


class PromptSelector:
    """Draws of the round after `boundary`. Call `open` or `resume` first."""

    def __init__(self, boundary: Boundary, prompts: PromptSource, store: StoreAccess, settings: Settings) -> None:
        self._boundary = boundary
        self._prompts = prompts
        self._store = store
        self._settings = settings
        self.cursor = boundary.cursor
        self.chosen = DEFAULT_PLAN

    async def choose(self, rounds_left: int) -> Opening:
        """Select the round's plan. Returns what it launches."""
        settings, queued = self._settings, len(self._boundary.queue)
        self.chosen = await choose_plan(
            self._store, self._settings, self._prompts, self._boundary.step + 1, queued, rounds_left
        )
        factors = self.chosen.plan.factors
        return next_round(settings.prompts_per_round, settings.responses_per_prompt, factors, queued, rounds_left)

    async def open(self, version: int, opening: Opening) -> OpenRound:
        """Open the selected round with its first prompts."""
        settings, queue, selected = self._settings, self._boundary.queue, self.chosen
        fresh, self.cursor = await self._prompts.take(self.cursor, opening.fresh)
        rules = settings.rules(opening.shape)
        plan = RoundPlan(self._boundary.step + 1, version, opening.shape, (*queue[: opening.queued], *fresh), rules)
        saved = await self._store.do(lambda store: store.open_round(plan, self.cursor, selected))
        return OpenRound(plan, self.cursor, saved, {}, {}, assigned=False, chosen=selected)

    def resume(self, opened: OpenRound) -> None:
        """Continue a round of a former coordinator. Its duration from here on is not comparable with the prediction."""
        self.cursor = opened.cursor
        self.chosen = replace(opened.chosen, seconds=None)

    async def more(
        self, plan: RoundPlan, count: int
    ) -> tuple[tuple[PromptKey, ...], Mapping[TrajectoryKey, RestoredSample]]:
        """Draw `count` further prompts for the open round. Returns them and their records."""
        queued = replacements(plan.shape.kind, self._boundary.queue, plan.prompts, count)
        fresh, self.cursor = await self._prompts.take(self.cursor, count - len(queued))
        prompts = (*queued, *fresh)
        return prompts, await self._store.do(lambda store: store.extend(plan, prompts, self.cursor))

    def queue_after(self, plan: RoundPlan, requeued: tuple[PromptKey, ...]) -> tuple[PromptKey, ...]:
        """Return the long-prompt queue after this round."""
        return queue_after(self._boundary.queue, plan.prompts, requeued)
