"""Blocking call: runs a coroutine to its end, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Interrupt:
    """Passes SIGINT and SIGTERM, or `KeyboardInterrupt` of a caller in another thread, to what stops the work."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None
        self._wanted = False

    def calls(self, stop: Callable[[], None]) -> None:
        """Call `stop` in this event loop on an interrupt, immediately if there was one."""
        self._loop, self._stop = asyncio.get_running_loop(), stop
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, stop)
        if self._wanted:
            stop()

    def interrupt(self) -> None:
        """Stop the work, from any thread."""
        self._wanted = True
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)


def run_blocking(work: Coroutine[object, object, T], interrupt: Interrupt) -> T:
    """Return the result of `work`. It runs in a thread of its own if this thread has a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="rljob") as pool:
        future = pool.submit(asyncio.run, work)
        while True:
            try:
                return future.result()
            except KeyboardInterrupt:
                if future.done():
                    raise
                interrupt.interrupt()
