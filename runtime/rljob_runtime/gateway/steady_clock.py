"""Steady clock: the time of deadlines and leases of episodes, which no correction of the system's clock changes.

A clock that is set forward by a minute would end the attempts of all runners, and expire the keys of all agents.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def steady_clock(
    system: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Return a clock of seconds of the epoch that agrees with `system` now, and advances with `elapsed`."""
    offset = system() - elapsed()
    return lambda: offset + elapsed()
