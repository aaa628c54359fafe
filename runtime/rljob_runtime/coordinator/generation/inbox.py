"""Inbox: the events of a stage, in the order in which its background tasks post them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Events for one loop, which handles them one at a time. Any task of the same event loop may post."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[T] = asyncio.Queue()

    def post(self, event: T) -> None:
        """Add an event."""
        self._events.put_nowait(event)

    async def next(self, seconds: float) -> list[T]:
        """Return all pending events, after waiting for the first for up to `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                first = await self._events.get()
        except TimeoutError:
            return []
        return [first, *self.drain()]

    def drain(self) -> Iterator[T]:
        """Take the pending events one by one, and those that are posted meanwhile."""
        while not self._events.empty():
            yield self._events.get_nowait()
