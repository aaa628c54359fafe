"""Asyncio helpers: wait for an event with a timeout; run background tasks without losing their errors."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

T = TypeVar("T")


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until `event` is set and clear it; return False if it is not set within `seconds` (None: no bound)."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True


@dataclass(frozen=True)
class Broken:
    """Event: a task of a stage has ended by this error."""

    error: BaseException


class StageTasks:
    """The background tasks of a stage. The error of a task is posted, and ends the stage."""

    def __init__(self, post: Callable[[Broken], None]) -> None:
        self._post = post
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task. It may be cancelled at any time."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._post(Broken(error))

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def alongside(work: Coroutine[Any, Any, T], *needed: Coroutine[Any, Any, None]) -> T:
    """Return the result of `work`. If a task that it needs ends first, raise that task's error."""
    main, others = asyncio.create_task(work), [asyncio.create_task(item) for item in needed]
    tasks: list[asyncio.Task[Any]] = [main, *others]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            if task.done():
                task.result()
        return await main
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Apart(Protocol):
    """Runs work that may block, outside of the event loop; `in_daemon_thread` does it in a thread."""

    async def __call__(self, work: Callable[[], T], name: str) -> T: ...


async def in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """Run blocking work in a thread that neither a cancelled caller nor the end of the process waits for.

    It suits work that may block for ever, as on a volume that does not answer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(cast(T, result))
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # passed to the awaiting caller
            error = raised
        # No caller waits if the loop is closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


CLOSE_SECONDS = 1.0


class BackgroundTasks:
    """Tasks that run in the background until `close`. `check` raises the error of a failed one."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task without waiting for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failed.append(task)

    def check(self) -> None:
        """Raise the error of the first task that failed."""
        for task in self._failed:
            task.result()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait for `seconds`, then cancel the remaining tasks."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
