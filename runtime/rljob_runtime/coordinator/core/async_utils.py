"""Waiting for wait_for_event, with an end to it; and what nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until `event` is set, at most `seconds` (None: for ever), and clear it. False when it did not come."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True


@dataclass(frozen=True)
class Broken:
    """A task that a stage has started ended by this error, which nobody was there to handle."""

    error: BaseException


class StageTasks:
    """The tasks of a stage, which nobody awaits. What one of them raises is posted: the stage is to end by it."""

    def __init__(self, post: Callable[[Broken], None]) -> None:
        self._post = post
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Begin it. It may be cancelled at any time."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._post(Broken(error))

    async def close(self) -> None:
        """End them all."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def alongside(work: Coroutine[Any, Any, T], *needed: Coroutine[Any, Any, None]) -> T:
    """The result of `work`, unless one of those it needs ends first: then that one's error."""
    main, others = asyncio.create_task(work), [asyncio.create_task(item) for item in needed]
    everybody: list[asyncio.Task[Any]] = [main, *others]
    try:
        await asyncio.wait(everybody, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            if task.done():
                task.result()
        return await main
    finally:
        for task in everybody:
            task.cancel()
        await asyncio.gather(*everybody, return_exceptions=True)


FAREWELL_SECONDS = 1.0


class BackgroundTasks:
    """What goes on aside: started and forgotten, until `close`, or until `check` finds that one has failed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Nobody waits for this."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failed.append(task)

    def check(self) -> None:
        """Raise what the first of them failed with."""
        for task in self._failed:
            task.result()

    async def close(self, seconds: float = FAREWELL_SECONDS) -> None:
        """End what has not ended after so long."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
