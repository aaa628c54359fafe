"""Blocking call: runs a coroutine to its end, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


LOOK_SECONDS = 0.2
"""Seconds between two looks for an interrupt. The kernel may give a signal to another thread, while this one sleeps."""
GIVE_UP_SECONDS = 5.0
"""Seconds that the work has to end after a second interrupt."""


class EndedEarly(Exception):
    """A second interrupt ended the work, which was stopping after the first."""


class Interrupt:
    """Passes SIGINT and SIGTERM to what stops the work, also from a caller in another thread.

    The second one ends the work without waiting until it has stopped.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None
        self._wanted = False
        self._twice = asyncio.Event()

    def calls(self, stop: Callable[[], None]) -> None:
        """Call `stop` in this event loop on an interrupt, immediately if there was one."""
        self._loop, self._stop = asyncio.get_running_loop(), stop
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._receive)
        if self._wanted:
            stop()

    def interrupt(self) -> None:
        """Stop the work, from any thread; the second time, end it."""
        if self._loop is not None and self._stop is not None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._receive)
        else:
            self._wanted = True

    def _receive(self) -> None:
        if self._wanted:
            self._twice.set()
            return
        self._wanted = True
        assert self._stop is not None
        self._stop()

    @contextlib.contextmanager
    def twice_is_early(self) -> Iterator[None]:
        """Raise `EndedEarly` for a second interrupt that comes while the block is left, as while Ray stops."""
        try:
            yield
        except KeyboardInterrupt:
            if self._wanted:
                raise EndedEarly from None
            raise

    async def watch(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of `work`. Raises `EndedEarly` after a second interrupt."""
        working, twice = asyncio.ensure_future(work), asyncio.ensure_future(self._twice.wait())
        try:
            await asyncio.wait({working, twice}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            working.cancel()
            ended, _ = await asyncio.wait({working}, timeout=GIVE_UP_SECONDS)
            if ended and not working.cancelled() and (error := working.exception()) is not None:
                log.warning("while the work was ended: %s", error)
            raise EndedEarly
        finally:
            working.cancel()
            twice.cancel()


def run_blocking(work: Coroutine[object, object, T], interrupt: Interrupt) -> T:
    """Return the result of `work`. It runs in a thread of its own if this thread has a running event loop.

    Raises `EndedEarly` after a second interrupt.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(interrupt.watch(work))
    with _interrupts_to(interrupt), ThreadPoolExecutor(1, thread_name_prefix="rljob") as pool:
        try:
            future = pool.submit(asyncio.run, interrupt.watch(work))
            while not future.done():
                wait((future,), LOOK_SECONDS)
        except SystemExit:  # Ray makes it of SIGTERM. The pool ends when the work has stopped.
            interrupt.interrupt()
            raise
        return future.result()


@contextlib.contextmanager
def _interrupts_to(interrupt: Interrupt) -> Iterator[None]:
    """Let SIGINT call `interrupt` in place of what `asyncio.run` does: it cancels its main task, which is blocked.

    Nothing is raised: an exception would come at any place of this thread, also where no one catches it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupt.interrupt())
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
