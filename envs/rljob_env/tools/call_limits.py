"""Call limits: how long calls may take at a server that answers one after another.

Calls that run concurrently wait for one another there. So each answer of the server renews the time of the other open
calls, of all episodes of a runner. A call that hangs beside them still ends: it has four times its time at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CONCURRENT_CALLS = 4
"""Most calls of an episode that run at a time."""


class CallLimits:
    """The limits of the calls that are open at one server. `seconds`: how long it may answer none of them.

    `times`: a call lasts so many times as long at most. As many calls of each episode are open at a time, so a server
    that answers a call of each episode within `seconds` answers all of them within this.
    """

    def __init__(self, seconds: float, times: int = CONCURRENT_CALLS) -> None:
        self.times = times
        self._seconds = seconds
        self._open: dict[asyncio.Timeout, float] = {}
        """The limit of each call, and its latest end by the event loop's time."""

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Limit a call. Raises `TimeoutError`."""
        latest = asyncio.get_running_loop().time() + self._seconds * self.times
        async with asyncio.timeout(self._seconds) as limit:
            self._open[limit] = latest
            try:
                yield
            finally:
                del self._open[limit]
                if not limit.expired():
                    self._renew()

    def _renew(self) -> None:
        until = asyncio.get_running_loop().time() + self._seconds
        for limit, latest in self._open.items():
            if not limit.expired():
                limit.reschedule(min(until, latest))
