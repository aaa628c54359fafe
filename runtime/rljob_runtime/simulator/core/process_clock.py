"""Process clock: the clock of a simulated process, which may run slower or faster than the loop's, or stand still."""

from __future__ import annotations

import asyncio
import math

SOON = 1e-6
"""The loop's timers may be a nanosecond early: what is due this soon counts as due."""


def loop_time() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()


class Event:
    """Wakes all its present waiters."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], None] = {}

    def fire(self) -> None:
        """Wake all waiters."""
        for waiter in list(self._waiting):
            _wake(waiter, True)

    def add(self, waiter: asyncio.Future[bool]) -> None:
        self._waiting[waiter] = None

    def remove(self, waiter: asyncio.Future[bool]) -> None:
        self._waiting.pop(waiter, None)


async def first_of(signals: tuple[Event, ...], seconds: float | None) -> bool:
    """Wait for any of these, at most `seconds` (None: no limit). Returns False on timeout."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[bool] = loop.create_future()
    timer = loop.call_later(seconds, _wake, waiter, False) if seconds is not None else None
    for signal in signals:
        signal.add(waiter)
    try:
        return await waiter
    finally:
        for signal in signals:
            signal.remove(waiter)
        if timer is not None:
            timer.cancel()


def _wake(waiter: asyncio.Future[bool], fired: bool) -> None:
    if not waiter.done():
        waiter.set_result(fired)


class ProcessClock:
    """A clock that passes `rate` seconds per second of the loop."""

    def __init__(self) -> None:
        self.rate = 1.0
        self.timers = 1.0
        """Seconds that a timer of this clock counts as one."""
        self._since = 0.0
        self._local = 0.0
        self._changed = Event()

    def now(self) -> float:
        """Return the time of this clock."""
        return self._local + (loop_time() - self._since) * self.rate

    def set(self, rate: float) -> None:
        """Change the rate from now on; 0 stands still."""
        self._local, self._since, self.rate = self.now(), loop_time(), rate
        self._changed.fire()

    async def until(self, due: float, *signals: Event) -> None:
        """Return when this clock shows `due`, or when one of `signals` fires."""
        while (left := due - self.now()) > SOON:
            rate = self.rate
            seconds = left / rate if rate > 0 and left < math.inf else None
            if await first_of((self._changed, *signals), seconds) and self.rate == rate:
                return

    async def sleep(self, seconds: float) -> None:
        """Sleep on this clock."""
        await self.until(self.now() + seconds)
