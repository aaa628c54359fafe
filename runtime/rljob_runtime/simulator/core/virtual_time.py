"""Virtual time: an event loop whose clock jumps to the next timer when no task can run.

Hours take milliseconds, and a program takes the same steps every time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits for something that no timer will bring."""


class Livelock(RuntimeError):
    """The loop runs without end while the clock stands still."""


MOST_TURNS = 200_000
"""Turns of the loop at one time, after which it is a livelock."""


class _JumpingSelector(selectors.SelectSelector):
    """A selector that advances the clock to the next timer instead of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns += 1
        if self._turns > MOST_TURNS:
            self._turns = 0  # The loop must still be closed.
            raise Livelock(f"{MOST_TURNS} turns of the loop at second {self.now}")
        if timeout is None:
            raise Deadlock("all tasks wait and no timer is set")
        if timeout > 0:
            self.now += timeout
            self._turns = 0
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop for programs without threads and sockets, which would not progress under virtual time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return virtual seconds since the loop was created."""
        return self._jumping.now


def run(program: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, under virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(program)
