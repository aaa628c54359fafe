"""Group ends: a group is ready for an update, filtered, or its prompt is requeued to be drawn again."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection

from rljob_runtime.coordinator.asynchronous.experience_buffer import ExperienceBuffer
from rljob_runtime.coordinator.asynchronous.prompt_queue import PromptQueue
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.generation.token_receiver import TokenReceiver
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.scheduling.asynchronous.async_groups import VERSION_GONE, GroupDone, GroupTracker
from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, REWARD_FAILED, PromptOutcome

log = logging.getLogger(__name__)

TOO_STALE = "TooStale"
"""Reason of a prompt that is requeued because its group is over the bound on staleness."""


class GroupEnds:
    """The ends of one coordinator's groups."""

    def __init__(
        self,
        context: CoordinatorContext,
        groups: GroupTracker,
        buffer: ExperienceBuffer,
        queue: PromptQueue,
        receiver: TokenReceiver,
        stats: GenerationStats,
    ) -> None:
        self._settings = context.settings
        self._store = context.store
        self._episodes = context.episodes
        self._groups = groups
        self._buffer = buffer
        self._queue = queue
        self._receiver = receiver
        self._stats = stats
        self.untrainable: list[str] = []
        """Reasons of the groups filtered since the last group that became ready."""
        self._filtered: Counter[str] = Counter()
        """Groups of each source filtered since its last group that became ready."""

    async def close(self, group: GroupDone) -> None:
        """Give a complete group to the buffer, or filter it."""
        if group.reason is None:
            self.untrainable.clear()
            del self._filtered[group.prompt.source]
            self._buffer.add(group.prompt, group.version, group.rewards)
            return
        self.untrainable.append(group.reason)
        self._stats.filtered_groups += 1
        self._stats.unscored_groups += group.reason == REWARD_FAILED
        self._stats.environment_failed_groups += group.reason == ENVIRONMENT_FAILED
        reason, source = group.reason, group.prompt.source
        await self.flush()
        replaced = self._settings.replaces(source, self._filtered[source])
        cursor = self._queue.give_back(source) if replaced else None
        self._filtered[source] += 1
        self._episodes.drop([group.prompt])
        lost = await self._store.do(lambda s: s.experience.end([group.prompt], PromptOutcome.FILTERED, reason, cursor))
        self._stats.lost_tokens += lost

    async def requeue(self, prompts: Collection[PromptKey], reason: str) -> int:
        """Requeue these prompts. Returns the number of tokens lost."""
        for prompt in prompts:
            if prompt in self._groups:
                self._groups.drop(prompt)
        await self.flush()
        for prompt in prompts:
            for sample in range(self._settings.responses_per_prompt):
                self._receiver.partials.forget(TrajectoryKey(prompt, sample))
        self._stats.requeued_prompts += len(prompts)
        self._episodes.drop(prompts)
        lost = await self._store.do(lambda s: s.experience.end(prompts, PromptOutcome.REQUEUED, reason))
        self._stats.lost_tokens += lost
        self._queue.requeue(prompts)
        return lost

    async def requeue_orphaned(self, available: Collection[int]) -> None:
        """Requeue groups whose weights no replica can provide; newer weights will generate them."""
        if not (prompts := self._groups.orphaned(available)):
            return
        lost = await self.requeue(prompts, VERSION_GONE)
        self._stats.lost_version_tokens += lost
        message = "%d groups are drawn again: no machine holds their weights, which costs %d tokens"
        log.warning(message, len(prompts), lost)

    async def requeue_too_stale(self) -> None:
        """Requeue groups in flight that no update may take: their further tokens would be lost."""
        stale = [prompt for prompt in self._groups if self._buffer.is_too_stale(self._groups.version(prompt))]
        if stale:
            await self.requeue(stale, TOO_STALE)

    async def flush(self) -> None:
        """Store the tokens that are not stored yet: the end of a group counts them."""
        tokens = self._receiver.drain_unsaved()
        if tokens:
            await self._store.do(lambda s: s.experience.append(tokens))
