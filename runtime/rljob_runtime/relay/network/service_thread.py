"""A thread that serves for as long as its owner lives. Should it end before, its owner's next call says so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class ServiceEnded(RuntimeError):
    """A thread has ended by an error that nobody foresaw, which is chained. What it served is not served any more."""


class Service:
    """`work` in a thread of its own. It returns when its owner closes it, and has nothing to raise."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._work = work
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def join(self) -> None:
        """Wait until it has ended, if it was ever started."""
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Raises `ServiceEnded` from the error that ended it."""
        if self._failure is not None:
            raise ServiceEnded(f"thread {self._thread.name} has ended: {self._failure!r}") from self._failure

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            log.exception("thread %s ended as none should", self._thread.name)
            self._failure = error
