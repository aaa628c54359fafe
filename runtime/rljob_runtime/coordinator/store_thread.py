"""The way to the store from the event loop: a thread of its own, so that a disk that is slow holds nobody up."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from rljob_runtime.coordinator.store import Store

T = TypeVar("T")
log = logging.getLogger(__name__)


class StoreAccess(Protocol):
    """How the coordinator reaches its store without waiting in the event loop."""

    async def do(self, work: Callable[[Store], T]) -> T:
        """Run `work` on the store, after everything asked before."""
        ...


class StoreThread:
    """The store's own thread: calls run one after the other, in the order they were made. After each it tidies up, but
    not before those that wait already."""

    def __init__(self, opener: Callable[[], Store]) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._store = self._thread.submit(opener).result()
        self._closing = False

    async def do(self, work: Callable[[Store], T]) -> T:
        result = await self._run(work)
        self._thread.submit(self._tidy)
        return result

    async def aclose(self) -> None:
        """Finish what was asked and close the file."""
        self._closing = True
        await self._run(Store.close)
        self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[Store], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._store)

    def _tidy(self) -> None:
        if self._closing:
            return
        try:
            self._store.tidy()
        except sqlite3.Error as error:
            # The journal has it all. Who cannot write to that either is told by the next call.
            log.warning("the store's journal stays as long as it is: %s", error)
