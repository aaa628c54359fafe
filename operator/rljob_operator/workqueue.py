"""Work queue: each key once, one worker a key, bounded concurrency, backoff with jitter.

kopf calls a handler for each watch event, one after the other, with bodies that are outdated by then. It neither
coalesces nor retries. So handlers only `add` the job's key here, and the worker reads the present state.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Backoff:
    """Pause after the n-th failure in a row: base * 2^(n-1) up to `cap`, times a factor in [0.5, 1.5)."""

    base: float = 0.2
    cap: float = 60.0

    def pause(self, failures: int, draw: float) -> float:
        """Return the pause in seconds. `draw` is uniform in [0, 1)."""
        return min(self.cap, self.base * 2.0 ** (min(failures, 32) - 1)) * (0.5 + draw)


@dataclass
class _Entry:
    due: float
    since: float  # when it was first asked for: the age that liveness looks at


async def _unnoticed(key: Hashable, error: Exception) -> None:
    return


class WorkQueue(Generic[K]):
    """Queue of keys that wait for work. All methods belong to one event loop."""

    def __init__(
        self,
        work: Callable[[K, float], Awaitable[float | None]],
        *,
        failed: Callable[[K, Exception], Awaitable[None]] = _unnoticed,
        workers: int = 8,
        work_seconds: float = 120.0,
        backoff: Backoff | None = None,
        seed: int | None = None,
    ) -> None:
        """Take the work function.

        `work(key, since)` receives the loop's time of the key's first mark. It returns after how many seconds the key
        is due again; None: when the next event comes. If it raises, it is retried after a backoff, and `failed` is
        called with the error. `work_seconds` bounds one call of either.
        """
        self._work = work
        self._failed = failed
        self._workers = workers
        self._work_seconds = work_seconds
        self._backoff = backoff or Backoff()
        self._random = random.Random(seed)
        self._waiting: dict[K, _Entry] = {}
        self._running: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def add(self, key: K, delay: float = 0.0) -> None:
        """Ask for work on a key in `delay` seconds.

        The earliest request counts. A key whose work is running is queued again.
        """
        now = asyncio.get_running_loop().time()
        entry = self._waiting.get(key)
        if entry is None:
            self._waiting[key] = _Entry(now + delay, now + delay)
        elif now + delay < entry.due:
            entry.due = entry.since = now + delay
        else:
            return
        self._wake.set()

    def forget(self, key: K) -> None:
        """Drop a deleted object."""
        self._waiting.pop(key, None)
        self._failures.pop(key, None)

    def depth(self) -> int:
        """Count the keys that wait, now or later."""
        return len(self._waiting)

    def idle(self) -> bool:
        """Tell whether nothing runs and nothing is due."""
        now = asyncio.get_running_loop().time()
        return not self._running and all(entry.due > now for entry in self._waiting.values())

    def oldest_seconds(self) -> float:
        """Return for how long the oldest key is overdue or running. It reveals a stuck worker."""
        now = asyncio.get_running_loop().time()
        began = [entry.due for entry in self._waiting.values()] + list(self._running.values())
        return max([0.0, *(now - time for time in began)])

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`.

        Running calls are cancelled then. That is safe: every step of a reconcile can be repeated.
        """
        tasks: set[asyncio.Task[None]] = set()
        stopping = asyncio.create_task(stop.wait(), name="queue-stop")
        try:
            while not stop.is_set():
                self._wake.clear()
                pause = self._start_due(tasks)
                waking = asyncio.create_task(self._wake.wait(), name="queue-wake")
                await asyncio.wait({waking, stopping}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
        finally:
            stopping.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start_due(self, tasks: set[asyncio.Task[None]]) -> float | None:
        """Start what is due, oldest first, as far as workers are free.

        Return the seconds to the next due time.
        """
        now = asyncio.get_running_loop().time()
        free = self._workers - len(self._running)
        candidates = sorted(
            ((entry.due, key) for key, entry in self._waiting.items() if key not in self._running), key=lambda c: c[0]
        )
        for due, key in candidates:
            if free <= 0:
                return None  # a worker that ends wakes us
            if due > now:
                return due - now
            since = self._waiting.pop(key).since
            self._running[key] = now
            task = asyncio.create_task(self._serve(key, since), name=f"reconcile {key}")
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            free -= 1
        return None

    async def _serve(self, key: K, since: float) -> None:
        try:
            async with asyncio.timeout(self._work_seconds):
                again = await self._work(key, since)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            pause = self._backoff.pause(failures, self._random.random())
            level = logging.WARNING if failures > 1 else logging.INFO
            _logger.log(level, "%s: failed %d times, again in %.1f s: %s", key, failures, pause, error or repr(error))
            await self._tell(key, error)
            self.add(key, pause)
        else:
            self._failures.pop(key, None)
            if again is not None:
                self.add(key, again)
        finally:
            self._running.pop(key, None)
            self._wake.set()

    async def _tell(self, key: K, error: Exception) -> None:
        try:
            async with asyncio.timeout(self._work_seconds):
                await self._failed(key, error)
        except Exception as again:
            _logger.warning("%s: its failure could not be reported: %s", key, again or repr(again))
