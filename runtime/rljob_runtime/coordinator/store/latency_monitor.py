"""Store latency monitor: measures store calls and reports a slow volume."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn, TypeVar

from rljob_api.status import StatusWarning
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.scheduling.fault_detection.write_latency import LATE_SECONDS, LatencyWindow

T = TypeVar("T")

LOOK_SECONDS = 2.0
"""Interval at which waiting calls are checked."""
PROBLEM = StatusWarning(
    reason="StoreSlow",
    message=f"the store waits for its volume for more than {LATE_SECONDS:g} s at a time: nothing is lost, but updates "
    "wait for it, and what is generated meanwhile is in memory only; look at the volume's latency, and at who else "
    "writes to it",
)


class StoreLatencyMonitor:
    """A `StoreAccess` that measures another one."""

    def __init__(self, store: StoreAccess) -> None:
        self._store = store
        self._waiting: list[float] = []
        self._pace = LatencyWindow()

    async def do(self, work: Callable[[Store], T]) -> T:
        """Run the work on the other one."""
        clock = asyncio.get_running_loop().time
        since = clock()
        self._waiting.append(since)
        try:
            return await self._store.do(work)
        finally:
            self._waiting.remove(since)
            self._pace = self._pace.observe(since, clock())

    async def watch(self, reporter: Reporter) -> NoReturn:
        """Report a slow volume, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = clock()
            for since in self._waiting[:1]:
                self._pace = self._pace.observe(since, now)
            reporter.problem(PROBLEM.reason, PROBLEM if self._pace.slow(now) else None)
