"""Rollouts: engines side by side, and which of them has news next."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterable

from rljob_bench.async_systems.hardware import Hardware
from rljob_bench.async_systems.turns import TurnEngine
from rljob_runtime.perf_model.engine_records import EngineLoad, Finish, Request


class Rollouts:
    """The replicas of a hardware by number. Times never go back."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._engines = [TurnEngine(hardware.engine()) for _ in range(hardware.replicas)]
        self._stamps = [0] * hardware.replicas
        self._events: list[tuple[float, int, int]] = []
        """Heap of (time, replica, stamp); stale where the stamp is not the replica's last."""
        self._untold: deque[tuple[float, int, list[Finish]]] = deque()
        """What ended just when its replica was given more, by another's end at the same time."""

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def next_event(self) -> float:
        """When `finished` may next bring something; infinity when all are idle."""
        if self._untold:
            return self._untold[0][0]
        while self._events and self._events[0][2] != self._stamps[self._events[0][1]]:
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else math.inf

    def finished(self) -> tuple[int, list[Finish]]:
        """Return the replica that has the next event, and what ended at it. Raises `IndexError` when all are idle."""
        if self._untold:
            _, replica, told = self._untold.popleft()
            return replica, told
        time = self.next_event
        replica = self._events[0][1]
        told = self._engines[replica].advance(time)
        self._touched(replica)
        return replica, told

    def submit(self, replica: int, now: float, requests: Iterable[Request]) -> None:
        """Queue these there."""
        self._engines[replica].submit(now, requests)
        if told := self._engines[replica].advance(now):
            self._untold.append((now, replica, told))
        self._touched(replica)

    def take(self, replica: int, now: float) -> list[Request]:
        """Remove all responses of a replica, with their tokens, in the order of submission.

        What ended at `now` must have been collected before.
        """
        engine = self._engines[replica]
        taken = engine.abort(now, list(engine.progress(now)))
        self._touched(replica)
        return taken

    def progress(self, replica: int, now: float) -> list[tuple[Hashable, int]]:
        """Responses that are there, the first submitted first, with their generated tokens."""
        return list(self._engines[replica].progress(now).items())

    def load(self, replica: int, now: float) -> EngineLoad:
        """Return the load of one replica."""
        return self._engines[replica].load(now)

    def loads(self, now: float) -> list[EngineLoad]:
        """Return the loads of all replicas."""
        return [engine.load(now) for engine in self._engines]

    def fullness(self, now: float) -> float:
        """Return the largest share that a replica uses of what its cache and its batch can hold."""
        return max(max(load.kv_use, load.running / self.hardware.max_sequences) for load in self.loads(now))

    def _touched(self, replica: int) -> None:
        self._stamps[replica] += 1
        if (time := self._engines[replica].next_event) < math.inf:
            heapq.heappush(self._events, (time, replica, self._stamps[replica]))
