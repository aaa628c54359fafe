"""The way to the store from the event loop: a thread of its own, so that a disk that is slow holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from rljob_runtime.coordinator.store import Store

T = TypeVar("T")


class StoreAccess(Protocol):
    """How the coordinator reaches its store without waiting in the event loop."""

    async def do(self, work: Callable[[Store], T]) -> T:
        """Run `work` on the store, after everything asked before."""
        ...


class StoreThread:
    """The store's own thread: calls run one after the other, in the order they were made."""

    def __init__(self, opener: Callable[[], Store]) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._store = self._thread.submit(opener).result()

    async def do(self, work: Callable[[Store], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._store)

    async def aclose(self) -> None:
        """Finish what was asked and close the file."""
        await self.do(Store.close)
        self._thread.shutdown(wait=False)
