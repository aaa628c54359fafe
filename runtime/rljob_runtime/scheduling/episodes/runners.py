"""Runners: which runner of an environment runs which attempt, and which runners are silent.

    offer → take (a runner asks) → heartbeat … → end, or lapsed

Runners pull, so their number need not be known. Nothing here reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

A = TypeVar("A", bound=Hashable)
"""What names an attempt."""


@dataclass
class _Held:
    runner: str | None
    """None: held by a runner that a former process knew."""
    heard: float


class RunnerLeases(Generic[A]):
    """The attempts that wait for a runner, by environment, and those that a runner holds.

    `patience`: seconds for which a runner may be silent.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._waiting: dict[str, deque[tuple[A, float]]] = {}
        self._held: dict[A, _Held] = {}

    def offer(self, attempt: A, environment: str, now: float) -> None:
        """Let the next runner of this environment that asks have the attempt."""
        self._waiting.setdefault(environment, deque()).append((attempt, now))

    def adopt(self, attempt: A, now: float) -> None:
        """Hold an attempt of a former process for the runner that has it and will say so."""
        self._held[attempt] = _Held(None, now)

    def take(self, environment: str, runner: str, now: float) -> A | None:
        """Give the attempt that waits longest to a runner; None if none waits."""
        waiting = self._waiting.get(environment)
        if not waiting:
            return None
        attempt, _ = waiting.popleft()
        self._held[attempt] = _Held(runner, now)
        return attempt

    def give_back(self, attempt: A, environment: str, now: float) -> bool:
        """Let the next runner have an attempt that did not reach the one that took it; False if it has ended."""
        if self._held.pop(attempt, None) is None:
            return False
        self._waiting.setdefault(environment, deque()).appendleft((attempt, now))
        return True

    def heartbeat(self, runner: str, attempts: Iterable[A], now: float) -> list[A]:
        """Record that a runner lives; return those of the attempts that it names which are not its own."""
        foreign = []
        for attempt in attempts:
            held = self._held.get(attempt)
            if held is not None and held.runner in (None, runner):
                held.runner, held.heard = runner, now
            else:
                foreign.append(attempt)
        return foreign

    def runner(self, attempt: A) -> str | None:
        """Return the runner that holds an attempt, if one does and has been heard."""
        held = self._held.get(attempt)
        return held.runner if held is not None else None

    def may_end(self, attempt: A, runner: str) -> bool:
        """Return whether a runner holds an attempt, or may hold it from a former process."""
        held = self._held.get(attempt)
        return held is not None and held.runner in (None, runner)

    def end(self, attempt: A) -> None:
        """Forget an attempt that has ended."""
        if self._held.pop(attempt, None) is None:
            for waiting in self._waiting.values():
                for one in [one for one in waiting if one[0] == attempt]:
                    waiting.remove(one)

    def lapsed(self, now: float) -> list[A]:
        """Return the attempts whose runner has been silent for too long. They stay held until `end`."""
        return [attempt for attempt, held in self._held.items() if now - held.heard > self._patience]

    def unserved(self, now: float, seconds: float) -> list[str]:
        """Return the environments for whose attempts no runner has asked for so long."""
        return [name for name, waiting in self._waiting.items() if waiting and now - waiting[0][1] > seconds]
