"""Store thread: runs store calls in a thread of its own, so that a slow disk does not block the event loop."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from rljob_runtime.coordinator.store.connection import Opening
from rljob_runtime.coordinator.store.store import Store

T = TypeVar("T")
log = logging.getLogger(__name__)


class StoreAccess(Protocol):
    """Asynchronous access to the store."""

    async def do(self, work: Callable[[Store], T]) -> T:
        """Run `work` on the store, after all earlier calls."""
        ...


class StoreThread:
    """The store's thread. Calls run in order; it tidies the store when no call waits. Created by `open`."""

    def __init__(self, thread: ThreadPoolExecutor, store: Store) -> None:
        self._thread = thread
        self._store = store
        self._closing = False
        self._failed: Exception | None = None

    @classmethod
    async def open(cls, opener: Callable[[Opening], Store], opening: Opening) -> StoreThread:
        """Open a store with `opener` in the thread.

        That may take minutes, and is cancelled with the caller. Raises the opener's errors."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        opened = thread.submit(opener, opening)
        try:
            return cls(thread, await asyncio.wrap_future(opened))
        except BaseException:
            opening.give_up()
            # It may be open by now; the next opener must find it closed.
            opened.add_done_callback(_close)
            thread.shutdown(wait=False)
            raise

    async def do(self, work: Callable[[Store], T]) -> T:
        """Run `work` as `StoreAccess` describes."""
        if self._failed is not None:
            raise self._failed
        result = await self._run(work)
        self._thread.submit(self._tidy)
        return result

    async def aclose(self) -> None:
        """Finish pending calls and close the file."""
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
            # The journal is complete. If it cannot be written either, the next call fails.
            log.warning("the store's journal stays as long as it is: %s", error)
        except Exception as error:  # no caller waits here: the next call raises it
            self._failed = error


def _close(opened: Future[Store]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
