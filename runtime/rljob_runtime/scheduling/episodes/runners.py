"""Runners: which runner of an environment runs which attempt, and which runners are silent.

    offer → take (a runner asks) → heartbeat … → end, or lapsed

Runners pull, so their number need not be known. Nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
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
        self._waiting: dict[str, OrderedDict[A, float]] = {}
        """By environment: attempts in their order, with the time since which each waits."""
        self._environments: dict[A, str] = {}
        """Of the attempts that wait: many may end at a time, and none is searched for."""
        self._held: dict[A, _Held] = {}

    def offer(self, attempt: A, environment: str, now: float) -> None:
        """Let the next runner of this environment that asks have the attempt."""
        self._waiting.setdefault(environment, OrderedDict())[attempt] = now
        self._environments[attempt] = environment

    def adopt(self, attempt: A, now: float) -> None:
        """Hold an attempt of a former process for the runner that has it and will say so."""
        self._held[attempt] = _Held(None, now)

    def take(self, environment: str, runner: str, now: float, most: int = 1, runners: int = 1) -> list[A]:
        """Give the attempts that wait longest to a runner, `most` at most.

        `runners`: how many ask now, this one included. Each is given its part, so that none runs all of them while
        another has nothing to do.
        """
        waiting = self._waiting.get(environment) or OrderedDict[A, float]()
        count = min(most, math.ceil(len(waiting) / max(1, runners)))
        taken = [waiting.popitem(last=False)[0] for _ in range(count)]
        for attempt in taken:
            del self._environments[attempt]
            self._held[attempt] = _Held(runner, now)
        return taken

    def give_back(self, attempt: A, environment: str, now: float) -> bool:
        """Let the next runner have an attempt that did not reach the one that took it; False if it has ended."""
        if self._held.pop(attempt, None) is None:
            return False
        self.offer(attempt, environment, now)
        self._waiting[environment].move_to_end(attempt, last=False)
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
        self._held.pop(attempt, None)
        if (environment := self._environments.pop(attempt, None)) is not None:
            del self._waiting[environment][attempt]

    def lapsed(self, now: float) -> list[A]:
        """Return the attempts whose runner has been silent for too long. They stay held until `end`."""
        return [attempt for attempt, held in self._held.items() if now - held.heard > self._patience]

    def unserved(self, now: float, seconds: float) -> list[str]:
        """Return the environments for whose attempts no runner has asked for so long."""
        return [
            name for name, waiting in self._waiting.items() if waiting and now - next(iter(waiting.values())) > seconds
        ]
