"""Own share: the seconds that the gateway itself adds to an answered turn.

They are those from a request's headers until its answer, without the waits for others: for the coordinator, which
queues, generates and stores, and for a client that sends or reads. What is left are queues and work of this process.
Where a wait ends is known only where an answer arrives, so those who wait count it, for the request of their task.
"""

from __future__ import annotations

import bisect
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate

BOUNDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0, 60.0)
"""Upper bounds of the buckets in seconds. One is the goal for 99 of 100 turns, 0.02."""


@dataclass
class _Stopwatch:
    """A request that is answered now."""

    waited: float = 0.0


_CURRENT: ContextVar[_Stopwatch | None] = ContextVar("request", default=None)


class OwnShare:
    """A histogram of the gateway's own seconds. `clock`: a monotonic one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = 0.0
        """Sum over all turns."""
        self._counts = [0] * (len(BOUNDS) + 1)
        self._clock = clock

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure a request while the context is open. One that ends by an error is no turn."""
        watch, began = _Stopwatch(), self._clock()
        token = _CURRENT.set(watch)
        try:
            yield
        finally:
            _CURRENT.reset(token)
        own = max(0.0, self._clock() - began - watch.waited)
        self._counts[bisect.bisect_left(BOUNDS, own)] += 1
        self.seconds += own

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Return the bound of each bucket, and how many turns are at or below it, as Prometheus has them."""
        return list(zip([*map(str, BOUNDS), "+Inf"], map(float, accumulate(self._counts)), strict=True))


def waited(seconds: float) -> None:
    """Count seconds for which the present request waited for another process. Elsewhere this does nothing."""
    watch = _CURRENT.get()
    if watch is not None:
        watch.waited += max(0.0, seconds)


@contextlib.contextmanager
def waiting(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Count the time in which the context is open as a wait; see `waited`."""
    began = clock()
    try:
        yield
    finally:
        waited(clock() - began)


def least_bound(buckets: Sequence[tuple[str, float]], share: float) -> float:
    """Return the least bound at or below which this share of the turns is. 0.0 without turns.

    It is infinite where the last bucket is needed.
    """
    total = buckets[-1][1] if buckets else 0.0
    if not total:
        return 0.0
    return next(float(bound) for bound, count in buckets if count >= share * total)
