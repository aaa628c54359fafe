"""Prompt queue: the prompts that replicas draw next, requeued prompts first."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.protocols import PromptSource
from rljob_runtime.protocols.trajectory import Cursor, PromptKey
from rljob_runtime.scheduling.shares import allot, by_source


class PromptQueue:
    """The queue of one coordinator. The store has what it was before the last draw."""

    def __init__(self, settings: Settings, prompts: PromptSource) -> None:
        self._settings = settings
        self._prompts = prompts
        self._requeued: deque[PromptKey] = deque()
        self._cursor = Cursor()

    async def restore_cursor(self, store: StoreAccess) -> None:
        """Go on after the prompts that were drawn."""
        self._cursor = await store.do(lambda s: s.experience.cursor())

    async def restore_requeued(self, store: StoreAccess) -> None:
        """Read the requeued prompts again."""
        self._requeued = deque(await store.do(lambda s: s.experience.requeued()))

    def requeue(self, prompts: Collection[PromptKey]) -> None:
        """Add prompts that are drawn again."""
        self._requeued.extend(prompts)

    def give_back(self, source: str) -> Cursor:
        """Let another prompt of this source be drawn, beyond its share. Returns the cursor then."""
        self._cursor = self._settings.shares.given_back(self._cursor, source)
        return self._cursor

    async def take(self, count: int) -> tuple[tuple[PromptKey, ...], Cursor]:
        """Return prompts and the cursor after them."""
        again = [self._requeued.popleft() for _ in range(min(count, len(self._requeued)))]
        names, self._cursor = allot(self._settings.shares, self._cursor, count - len(again))
        drawn: dict[str, Iterator[PromptKey]] = {}
        for source, number in by_source(names).items():
            keys, self._cursor = await self._prompts.take(self._cursor, number, source)
            drawn[source] = iter(keys)
        return (*again, *(next(drawn[source]) for source in names)), self._cursor
