"""Watch: counts what replicas do, from the end of the warm-up on."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rljob_bench.async_systems.outcome import Outcome, Update
from rljob_bench.async_systems.rollouts import Rollouts
from rljob_runtime.perf_model.engine_records import Request


class Watch:
    """The observations of one job. What precedes `begin` does not count."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self._counting = False
        self._before = (0, 0.0, 0)
        self._kv_use: list[float] = []
        self._latencies: list[float] = []
        self._releases = self._moved = 0
        self._recomputing = 0.0

    def begin(self, now: float) -> None:
        """Count from here."""
        self._counting = True
        self._before = self._counters(now)

    def look(self, now: float) -> None:
        """See how full the caches are."""
        if self._counting:
            self._kv_use.append(fmean(load.kv_use for load in self._rollouts.loads(now)))

    def finished(self, seconds: float) -> None:
        """Record that a response ended `seconds` after its launch."""
        if self._counting:
            self._latencies.append(seconds)

    def moved(self, requests: Sequence[Request], *, released: bool = True) -> None:
        """Record that these responses left a replica, to have their context computed again."""
        if self._counting:
            self._releases += released
            self._moved += len(requests)
            squares = sum(one.context_tokens**2 for one in requests)
            latency = self._rollouts.hardware.latency
            self._recomputing += latency.prefill(sum(one.context_tokens for one in requests), squares)

    def outcome(self, begin: float, updates: Sequence[Update]) -> Outcome:
        """After the last update."""
        end = updates[-1].end
        generated, busy, preemptions = (
            after - before for after, before in zip(self._counters(end), self._before, strict=True)
        )
        replica_seconds = (end - begin) * len(self._rollouts)
        return Outcome(
            begin,
            tuple(updates),
            generated_tokens=int(generated),
            busy_share=busy / replica_seconds,
            kv_use=fmean(self._kv_use) if self._kv_use else float("nan"),
            latencies=self._latencies,
            preemptions=int(preemptions),
            releases=self._releases,
            moved=self._moved,
            recomputed_share=self._recomputing / replica_seconds,
        )

    def _counters(self, now: float) -> tuple[int, float, int]:
        loads = self._rollouts.loads(now)
        return (
            sum(load.generated_tokens for load in loads),
            sum(load.busy_seconds for load in loads),
            sum(load.preemptions for load in loads),
        )
