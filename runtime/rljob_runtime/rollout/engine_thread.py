"""Engine thread: the one thread that owns an engine. It runs calls between two steps, and steps while there is work."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from rljob_runtime.rollout.engines.base import Engine, StepOutput

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class EngineDied(Exception):
    """The engine's thread has ended; the cause is chained."""


class EngineThread:
    """Builds the engine in its own thread, then serves calls and steps until `close` or a failure.

    `on_change` receives each step's outputs and seconds. After each call it receives no outputs and None, before the
    caller gets its answer. A step's seconds begin at the end of the step or the call before it.
    A call that raises passes its error to the caller, and the engine continues. A step that raises ends the engine,
    because the engine's state is unknown afterwards.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Engine],
        on_change: Callable[[Engine, list[StepOutput], float | None], None],
        on_end: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make, self._on_change, self._on_end = make, on_change, on_end
        self._clock = clock
        self._since = 0.0
        self._calls: queue.SimpleQueue[tuple[Callable[[Engine], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._ended = False
        self._cause: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[Engine], Result]) -> Future[Result]:
        """Run `work(engine)` between two steps.

        The future raises `EngineDied` if the thread has ended or ends first.
        """
        future: Future[Result] = Future()
        with self._gate:
            if self._ended:
                future.set_exception(self._died())
            else:
                self._calls.put((work, future))
        return future

    @property
    def ended(self) -> bool:
        """True when the engine has ended, by `close` or by a failure."""
        return self._ended

    def close(self, seconds: float) -> bool:
        """Stop after the step in progress; return False if the thread does not end within `seconds`."""
        self._calls.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        engine: Engine | None = None
        try:
            engine = self._make()
            while self._serve(engine):
                if engine.busy:
                    self._step(engine)
        except BaseException as error:
            log.exception("the engine failed and is closed")
            self._cause = error
        finally:
            self._end(engine)

    def _step(self, engine: Engine) -> None:
        outputs = engine.step()
        began, self._since = self._since, self._clock()
        self._on_change(engine, outputs, self._since - began)

    def _serve(self, engine: Engine) -> bool:
        """Run all waiting calls, blocking for the first if there is nothing to step; return False to stop."""
        block = not engine.busy
        while True:
            try:
                item = self._calls.get(block=block)
            except queue.Empty:
                return True
            if item is None:
                return False
            work, future = item
            if future.set_running_or_notify_cancel():
                self._answer(engine, work, future)
            block = block and not engine.busy

    def _answer(self, engine: Engine, work: Callable[[Engine], Any], future: Future[Any]) -> None:
        """Run one call. Its caller gets an answer even if `on_change` fails."""
        try:
            try:
                result = work(engine)
            finally:
                self._on_change(engine, [], None)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            self._since = self._clock()

    def _end(self, engine: Engine | None) -> None:
        with self._gate:
            self._ended = True
        while not self._calls.empty():
            item = self._calls.get()
            if item is not None and item[1].set_running_or_notify_cancel():
                item[1].set_exception(self._died())
        try:
            if engine is not None:
                engine.close()
        except Exception:
            log.exception("closing the engine failed")
        finally:
            self._on_end()

    def _died(self) -> EngineDied:
        error = EngineDied("the engine was closed" if self._cause is None else f"the engine failed: {self._cause!r}")
        error.__cause__ = self._cause
        return error
