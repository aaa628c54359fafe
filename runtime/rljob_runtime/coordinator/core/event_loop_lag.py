"""The event loop's longest turn: how long everything in the coordinator waited for one piece of work.

A Lease is renewed between two turns. What takes long in one, whoever wrote the data that it works on, is seen here
before it costs the Lease.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NoReturn

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
"""Between two looks; a turn is seen as so much shorter at most."""
KEPT_SECONDS = 60.0
"""For which a turn is shown at least, and for twice as long at most."""
LONG_SECONDS = 0.5
"""A turn past this is told in the log: a Lease lasts thirty times as long."""


class EventLoopLag:
    """Measures by being late: a timer that is due in a turn is served after it. A busy processor makes it late too."""

    def __init__(self) -> None:
        self._this = self._last = 0.0
        self._since: float | None = None

    @property
    def longest_seconds(self) -> float:
        """The longest turn of the last minute or two."""
        return max(self._this, self._last)

    async def run(self) -> NoReturn:
        """Until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self.note(clock(), clock() - due)

    def note(self, now: float, late: float) -> None:
        """A timer was so many seconds late."""
        if self._since is None or now - self._since > KEPT_SECONDS:
            idle = self._since is None or now - self._since > 2 * KEPT_SECONDS
            self._last, self._this, self._since = 0.0 if idle else self._this, 0.0, now
        self._this = max(self._this, late)
        if late > LONG_SECONDS:
            log.warning("the event loop did nothing else for %.2f s", late)
