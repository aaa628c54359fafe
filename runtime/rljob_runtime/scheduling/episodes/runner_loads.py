"""Runner loads: how many episodes of each environment are open at a time, and how long they wait for a runner.

An episode is open from the moment at which it waits for a runner until its end. The number of runners follows from the
most of training that were open (`policies/scaling/runner_pools.py` of the operator). Nothing here reads a clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

A = TypeVar("A", bound=Hashable)
"""What names an attempt."""


@dataclass(frozen=True)
class RunnerLoad:
    """The load of one environment's runners in a period.

    `most_open`: most episodes open at a time. `most_training`: most of training. `begun`: episodes that a runner took,
    which waited `waited` seconds together.
    """

    most_open: int
    most_training: int
    begun: int = 0
    waited: float = 0.0


class _Peak:
    """Open attempts by environment, and the most of each environment since the last call of `take`."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._most: dict[str, int] = {}

    def add(self, environment: str, count: int) -> None:
        self._open[environment] += count
        self._most[environment] = max(self._most.get(environment, 0), self._open[environment])

    def take(self) -> dict[str, int]:
        found, self._most = self._most, {name: count for name, count in self._open.items() if count}
        return found


class RunnerLoads(Generic[A]):
    """Counts open attempts by environment. `trains`: whether an attempt is of training, and of no evaluation."""

    def __init__(self, trains: Callable[[A], bool] = lambda attempt: True) -> None:
        self._trains = trains
        self._environments: dict[A, str] = {}
        self._since: dict[A, float] = {}
        """Of the attempts that wait for a runner."""
        self._all, self._training = _Peak(), _Peak()
        self._begun: Counter[str] = Counter()
        self._waited: defaultdict[str, float] = defaultdict(float)

    def opened(self, attempt: A, environment: str, waits_since: float | None) -> None:
        """Count an attempt that waits for a runner since that moment, or has one already (None)."""
        if waits_since is not None:
            self._since[attempt] = waits_since
        if attempt in self._environments:
            return
        self._environments[attempt] = environment
        self._count(attempt, environment, 1)

    def begun(self, attempt: A, now: float) -> None:
        """Count the wait of an attempt that a runner has taken."""
        since = self._since.pop(attempt, None)
        if since is not None:
            self._begun[self._environments[attempt]] += 1
            self._waited[self._environments[attempt]] += max(0.0, now - since)

    def closed(self, attempt: A) -> None:
        """Forget an attempt that has ended."""
        self._since.pop(attempt, None)
        if (environment := self._environments.pop(attempt, None)) is not None:
            self._count(attempt, environment, -1)

    def take(self) -> dict[str, RunnerLoad]:
        """Return the loads since the last call, and continue with the attempts that are open."""
        training = self._training.take()
        found = {
            name: RunnerLoad(most, training.get(name, 0), self._begun[name], self._waited[name])
            for name, most in sorted(self._all.take().items())
        }
        self._begun.clear()
        self._waited.clear()
        return found

    def _count(self, attempt: A, environment: str, count: int) -> None:
        self._all.add(environment, count)
        if self._trains(attempt):
            self._training.add(environment, count)
