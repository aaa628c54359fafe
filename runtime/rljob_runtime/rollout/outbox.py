"""Outbox: deltas on their way to the coordinator, numbered, kept until acknowledged, with the engine's statistics.

A delta gets its number when a poll first returns it. Until then, further tokens of the same attempt are appended to it.
A slow poller thus receives few large deltas and a fast one many small ones, with the same content. Deltas and
statistics are put and taken together, because a reader divides tokens by steps. Thread-safe: the engine's thread puts,
the event loop takes.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import replace

from rljob_runtime.protocols import Delta, EngineStats, ReplicaReport
from rljob_runtime.protocols.trajectory import TrajectoryKey


class Outbox:
    """Outbox of one start of the replica's process (`boot`). Numbers start at 1; cursor 0 acknowledges nothing."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._lock = threading.Lock()
        self._stats = EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0)
        self._weight_version: int | None = None
        self._unseen: dict[tuple[TrajectoryKey, int], Delta] = {}
        self._sent: deque[tuple[int, Delta]] = deque()
        self._last = 0
        self._waiters: list[Future[None]] = []

    def put(self, deltas: list[Delta], stats: EngineStats, weight_version: int | None) -> None:
        """Add the deltas of an engine step, in order, and the engine's statistics after it."""
        with self._lock:
            self._stats, self._weight_version = stats, weight_version
            for delta in deltas:
                lease = (delta.key, delta.attempt)
                before = self._unseen.get(lease)
                self._unseen[lease] = delta if before is None else _joined(before, delta)
            self._wake(bool(deltas))

    def take(self, after: int) -> ReplicaReport:
        """Drop all deltas up to `after`; return all later ones, also those sent before, with their cursor.

        A cursor that this outbox never returned (that of another boot) acknowledges nothing.
        """
        with self._lock:
            while after <= self._last and self._sent and self._sent[0][0] <= after:
                self._sent.popleft()
            for delta in self._unseen.values():
                self._last += 1
                self._sent.append((self._last, delta))
            self._unseen.clear()
            deltas = tuple(delta for _, delta in self._sent)
            return ReplicaReport(self._boot, self._last, deltas, self._weight_version, self._stats)

    def ready(self, after: int) -> Future[None]:
        """Return a future that completes when `take(after)` would return a delta, or at `wake`."""
        future: Future[None] = Future()
        with self._lock:
            acknowledged = after <= self._last
            pending = self._unseen or any(number > after or not acknowledged for number, _ in self._sent)
            self._waiters = [waiter for waiter in self._waiters if not waiter.cancelled()]
            self._waiters.append(future)
            self._wake(bool(pending))
        return future

    def wake(self) -> None:
        """End all waits: the replica stops."""
        with self._lock:
            self._wake(True)

    def _wake(self, due: bool) -> None:
        if due:
            for waiter in self._waiters:
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(None)
            self._waiters.clear()


def _joined(first: Delta, then: Delta) -> Delta:
    return replace(
        first,
        token_ids=first.token_ids + then.token_ids,
        logprobs=first.logprobs + then.logprobs,
        finish_reason=then.finish_reason,
        cached_tokens=then.cached_tokens,
    )
