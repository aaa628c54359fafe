"""Event loop lag: the longest time for which one piece of work blocked the coordinator's event loop.

The Lease is renewed between two turns of the loop. This metric shows a long turn before it costs the Lease.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NoReturn

log = logging.getLogger(__name__)

PERIOD_SECONDS = 0.05
"""Period of the timer; a turn is measured too short by this much at most."""
KEPT_SECONDS = 60.0
"""A turn is shown for this long at least, and for twice as long at most."""
LONG_SECONDS = 0.5
"""A longer turn is logged: a Lease lasts thirty times as long."""


class EventLoopLag:
    """Measures the delay of a timer, which fires only after a long turn. A busy processor delays it too."""

    def __init__(self) -> None:
        self._this = self._last = 0.0
        self._since: float | None = None

    @property
    def longest_seconds(self) -> float:
        """The longest turn of the last one to two minutes."""
        return max(self._this, self._last)

    async def run(self) -> NoReturn:
        """Measure until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + PERIOD_SECONDS
            await asyncio.sleep(PERIOD_SECONDS)
            self.record(clock(), clock() - due)

    def record(self, now: float, late: float) -> None:
        """Record that a timer was `late` seconds late."""
        if self._since is None or now - self._since > KEPT_SECONDS:
            idle = self._since is None or now - self._since > 2 * KEPT_SECONDS
            self._last, self._this, self._since = 0.0 if idle else self._this, 0.0, now
        self._this = max(self._this, late)
        if late > LONG_SECONDS:
            log.warning("one turn blocked the event loop for %.2f s", late)
