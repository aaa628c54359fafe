"""An event loop on virtual time: when nobody can run, the clock jumps to the next timer. Hours take milliseconds, and
the same program takes the same steps every time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits for something that no timer will bring: under virtual time that is for ever."""


class Livelock(RuntimeError):
    """The loop goes round and round and the clock stands still."""


MOST_TURNS = 200_000
"""Turns of the loop at one moment, after which it is a livelock."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of sleeping until a timer is due, tells the loop that it is."""

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
    """For programs without threads and sockets: those would stand still while the clock runs."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now


def run(program: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` under virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(program)
