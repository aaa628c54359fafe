"""Runners: which runner of an environment runs which attempt, and which runners are silent.

    offer → take (a runner asks) → heartbeat … → end, or lapsed → hand over

Runners pull, so their number need not be known. Each attempt is of one environment, and no runner of another one takes
it, keeps it or ends it. Nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rljob_runtime.scheduling.episodes.runner_loads import RunnerLoads

A = TypeVar("A", bound=Hashable)
"""What names an attempt."""


@dataclass
class _Held:
    runner: str | None
    """None: held by a runner that a former process knew."""
    last_contact: float
    begun: bool
    """False until the runner receives it: before that no runner is silent or late."""


class RunnerLeases(Generic[A]):
    """The attempts that wait for a runner, by environment, and those that a runner holds.

    `patience`: seconds for which a runner may be silent. `wanted`: whether a runner may have an attempt now. It could
    do nothing with one that no engine generates. `trains`: whether an attempt is of training.
    """

    def __init__(
        self,
        patience: float,
        wanted: Callable[[A], bool] = lambda attempt: True,
        trains: Callable[[A], bool] = lambda attempt: True,
    ) -> None:
        self.loads: RunnerLoads[A] = RunnerLoads(trains)
        """What the runners have to do."""
        self.claims_refused = 0
        """Attempts that a runner of another environment claimed. An attempt counts each time."""
        self._patience = patience
        self._wanted = wanted
        self._waiting: dict[str, OrderedDict[A, float]] = {}
        """By environment: attempts in their order, with the time since which each waits."""
        self._environment_contacts: dict[str, float] = {}
        """By environment: when a runner of it asked for attempts or sent a heartbeat last."""
        self._environments: dict[A, str] = {}
        """The environment of each attempt here, so that the end of an attempt needs no search."""
        self._held: dict[A, _Held] = {}
        self._without_engine: dict[A, float] = {}
        """Held attempts that no engine generates, and since when that was seen."""
        self._leaving: set[A] = set()
        """Held attempts that leave their runners at their next turn."""

    def offer(self, attempt: A, environment: str, now: float) -> None:
        """Let the next runner of this environment that asks have the attempt."""
        self._waiting.setdefault(environment, OrderedDict())[attempt] = now
        self._environments[attempt] = environment
        self.loads.opened(attempt, environment, now)

    def adopt(self, attempt: A, environment: str, now: float) -> None:
        """Hold an attempt of a former process for the runner that has it and will say so."""
        self._held[attempt] = _Held(None, now, begun=True)
        self._environments[attempt] = environment
        self.loads.opened(attempt, environment, None)

    def take(self, environment: str, runner: str, now: float, most: int = 1, runners: int = 1) -> list[A]:
        """Give the attempts that wait longest and are wanted to a runner, `most` at most.

        `runners`: how many ask now, this one included. Each is given its part, so that none runs all of them while
        another has nothing to do.
        """
        self._environment_contacts[environment] = now
        waiting = self._waiting.get(environment) or OrderedDict[A, float]()
        wanted = [attempt for attempt in waiting if self._wanted(attempt)]
        taken = wanted[: min(most, math.ceil(len(wanted) / max(1, runners)))]
        for attempt in taken:
            del waiting[attempt]
            self._held[attempt] = _Held(runner, now, begun=False)
        return taken

    def begin(self, attempts: Iterable[A], now: float) -> None:
        """Record that a runner receives attempts, and count their waits. One that has ended meanwhile is left out."""
        for attempt in attempts:
            if (held := self._held.get(attempt)) is not None:
                held.last_contact, held.begun = now, True
                self.loads.begun(attempt, now)

    def give_back(self, attempt: A, now: float) -> bool:
        """Let the next runner have an attempt that did not reach the one that took it; False if it has ended."""
        if attempt not in self._held:
            return False
        self.transfer(attempt, attempt, now)
        return True

    def transfer(self, attempt: A, successor: A, now: float) -> None:
        """Let the next runner go on with a held attempt under another name: the one that held it has no part in it."""
        environment = self._environments.pop(attempt)
        del self._held[attempt]
        if successor != attempt:
            self.loads.closed(attempt)
        self.offer(successor, environment, now)
        self._waiting[environment].move_to_end(successor, last=False)

    def leave(self, attempt: A, waits: bool) -> bool:
        """Let an attempt that no engine generates leave its runner; return whether it does so now.

        `waits`: whether it waits for a turn. If not, a call of its tools may be under way, and another runner would
        execute it twice: then it leaves at its next turn.
        """
        if attempt not in self._held:
            return False
        if not waits:
            self._leaving.add(attempt)
        return waits

    def leavers(self, without_engine: Mapping[A, bool], now: float) -> list[tuple[A, float]]:
        """Return the attempts that leave their runners now, and from when on their time does not count.

        `without_engine`: the held attempts that no engine generates, and whether each waits for a turn. They leave as
        `leave` decided, or when that has lasted for as long as a runner may be silent.
        """
        self._without_engine = {one: self._without_engine.get(one, now) for one in without_engine}
        self._leaving &= without_engine.keys()
        found: list[tuple[A, float]] = []
        for attempt, since in self._without_engine.items():
            decided = attempt in self._leaving
            if (decided or now - since > self._patience) and self.leave(attempt, without_engine[attempt]):
                found.append((attempt, now if decided else since))
        return found

    def heartbeat(self, environment: str, runner: str, attempts: Iterable[A], now: float) -> list[A]:
        """Record that a runner lives; return those of the attempts that it names which are not its own."""
        self._environment_contacts[environment] = now
        foreign = []
        for attempt in attempts:
            if self.may_have(attempt, environment, runner):
                held = self._held[attempt]
                held.runner, held.last_contact, held.begun = runner, now, True
            else:
                foreign.append(attempt)
        return foreign

    def runner(self, attempt: A) -> str | None:
        """Return the runner that holds an attempt, if one does and has called."""
        held = self._held.get(attempt)
        return held.runner if held is not None else None

    def has_begun(self, attempt: A) -> bool:
        """Return whether a runner that has called received an attempt."""
        held = self._held.get(attempt)
        return held is not None and held.begun and held.runner is not None

    def last_contact(self, attempt: A) -> float:
        """Return when the runner of a held attempt called last."""
        return self._held[attempt].last_contact

    def may_have(self, attempt: A, environment: str, runner: str) -> bool:
        """Return whether a runner holds an attempt of its environment, or may hold it from a former process."""
        held = self._held.get(attempt)
        if held is None:
            return False
        if self._environments[attempt] != environment:
            self.claims_refused += 1
            return False
        return held.runner in (None, runner)

    def end(self, attempt: A) -> None:
        """Forget an attempt that has ended."""
        held = self._held.pop(attempt, None)
        if (environment := self._environments.pop(attempt, None)) is not None:
            self.loads.closed(attempt)
            if held is None:
                del self._waiting[environment][attempt]

    @property
    def held(self) -> Collection[A]:
        """Return the attempts that a runner holds, or held when a former process ended."""
        return self._held.keys()

    def lapsed(self, now: float) -> list[A]:
        """Return the attempts whose runner has been silent for too long. They stay held until `end`."""
        return [one for one, held in self._held.items() if held.begun and now - held.last_contact > self._patience]

    def unserved(self, now: float, seconds: float) -> list[str]:
        """Return the environments that have had wanted attempts and no runner for so long.

        A runner without a free place asks for nothing. Its heartbeats say that it will.
        """
        before = now - seconds
        return [
            name
            for name, waiting in self._waiting.items()
            if self._environment_contacts.get(name, -math.inf) < before
            and any(since < before and self._wanted(attempt) for attempt, since in waiting.items())
        ]
