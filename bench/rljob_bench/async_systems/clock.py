"""Time of a job: what engines bring, and what was put on the agenda, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from rljob_bench.async_systems.rollouts import Rollouts
from rljob_runtime.perf_model.engine_records import Finish


class Clock:
    """`finished` is told of every response that becomes complete, with its replica."""

    def __init__(self, rollouts: Rollouts, finished: Callable[[int, Finish], None]) -> None:
        self._rollouts = rollouts
        self._finished = finished
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = count()

    def at(self, time: float, act: Callable[[float], None]) -> None:
        """Call `act` with the time, when it has come; those of one time in the order in which they were put here."""
        heapq.heappush(self._agenda, (time, next(self._count), act))

    def tick(self) -> None:
        """Run the next event.

        Of events at one time, ends come first: nothing that ended is moved. Raises `IndexError` when nothing is left to
        do.
        """
        if self._rollouts.next_event <= self._agenda[0][0]:
            replica, finishes = self._rollouts.finished()
            for finish in finishes:
                self._finished(replica, finish)
        else:
            time, _, act = heapq.heappop(self._agenda)
            act(time)
