"""Service thread: serves for as long as its owner lives. If it ends earlier, its owner's next call raises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class ServiceEnded(RuntimeError):
    """A thread has ended by an unexpected error, which is chained. Its service is not available any more."""


class Service:
    """`work` in its own thread. `work` returns when its owner closes it, and should never raise."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._work = work
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended, if it was started."""
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise `ServiceEnded` from the error that ended the thread."""
        if self._failure is not None:
            raise ServiceEnded(f"thread {self._thread.name} has ended: {self._failure!r}") from self._failure

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            log.exception("thread %s ended unexpectedly", self._thread.name)
            self._failure = error
