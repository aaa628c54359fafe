"""Batch timeline: when the responses of an engine end, which gain a token per step together.

Between two ends the batch is constant, so a timeline costs one event per response. Times are seconds from now. In a
race, the engines' responses compete for the places of their groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from math import inf

Decode = Callable[[int, float, float], float]
"""Returns the seconds of consecutive steps: of this batch, over these context tokens, so many of them."""


class BatchTimeline:
    """The runs of an engine from `start` on.

    `steps`: of each run, from `start` to its end, ascending. `contexts`: tokens of each run in the KV cache. `groups`:
    of each run in a race.
    """

    def __init__(
        self,
        steps: Sequence[float],
        contexts: Sequence[int],
        decode: Decode,
        start: float,
        groups: Sequence[int] = (),
    ) -> None:
        self.groups = groups
        self.due = inf
        """Time at which the next run ends."""
        self.next_run = 0
        """Index of the run that ends at `due`."""
        self.alive = [True] * len(steps)
        self.made = 0.0
        """Steps up to now."""
        self._steps = steps
        self._contexts = contexts
        self._decode = decode
        self._running = len(steps)
        self._context = float(sum(contexts))
        self._now = start
        self._look_ahead()

    def stop(self, place: int, now: float) -> bool:
        """Stop the run at this index; return whether it was active. At `due` the next run ends."""
        if not self.alive[place]:
            return False
        self.advance(now)
        self.alive[place] = False
        self._running -= 1
        self._context -= self._contexts[place] + self.made
        self._look_ahead()
        return True

    def advance(self, now: float) -> None:
        """Go on to a time no later than `due`. Nothing happens before `start`."""
        if now <= self._now or self._running == 0:
            return
        steps = self._steps[self.next_run] - self.made
        if now < self.due:
            steps *= (now - self._now) / (self.due - self._now)
        self.made += steps
        self._context += steps * self._running
        self._now = now

    def _look_ahead(self) -> None:
        while self.next_run < len(self.alive) and not self.alive[self.next_run]:
            self.next_run += 1
        if self.next_run == len(self.alive):
            self.due = inf
        else:
            steps = max(0.0, self._steps[self.next_run] - self.made)
            self.due = self._now + max(0.0, self._decode(self._running, self._context, steps))


def race_ends(
    engines: Sequence[BatchTimeline], missing: list[int]
) -> Iterator[tuple[float, int, int, list[tuple[int, int]] | None]]:
    """Go on from end to end of engines whose runs race for the places of their groups.

    `missing`: free places by group, which are counted down; empty if every run goes on to its end. Yields the time, the
    engine and the index of each run that ends. Where it completes its group, the group's other runs stop: those that
    were active are yielded too, else None."""
    runs_of: list[list[tuple[int, int]]] = [[] for _ in missing]
    for number, engine in enumerate(engines if missing else ()):
        for place, group in enumerate(engine.groups):
            runs_of[group].append((number, place))
    due = [(engine.due, number) for number, engine in enumerate(engines)]
    heapq.heapify(due)
    while due and due[0][0] < inf:
        now, number = due[0]
        engine = engines[number]
        if now != engine.due:
            heapq.heappop(due)
            continue
        place, lost = engine.next_run, None
        engine.stop(place, now)
        if missing:
            group = engine.groups[place]
            missing[group] -= 1
            if missing[group] == 0:
                lost = [run for run in runs_of[group] if engines[run[0]].stop(run[1], now)]
        heapq.heapreplace(due, (engine.due, number))
        for other in {other for other, _ in lost} if lost else ():
            heapq.heappush(due, (engines[other].due, other))
        yield now, number, place, lost
