"""Engine observer: samples of the engines' speed from the polls of a round.

It sends no request of its own. `perf_model.observed_speed` fits a latency model to the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from rljob_runtime.perf_model.observed_speed import Speed, SpeedSample, binned, fit_latency, same_batch
from rljob_runtime.protocols import EngineStats, GenerateRequest, ReplicaReport
from rljob_runtime.scheduling.lending.gain import EngineSpeed

MAX_SAMPLES = 256
"""Number of samples above which they are binned."""
ROUNDS_KEPT = 4
"""Number of earlier rounds that `engine_speed` considers."""


@dataclass
class _Observation:
    """A replica at its last poll, or at its last launch."""

    time: float
    boot: str
    stats: EngineStats
    starting: int = 0
    """Prompt tokens of the last launch, until the engine has admitted all of it."""


class EngineObserver:
    """The observations of one round, of engines with `tensor_parallel` accelerators. Times are the event loop's."""

    def __init__(self, tensor_parallel: int = 1) -> None:
        self._tensor_parallel = tensor_parallel
        self._past: tuple[Speed, ...] = ()
        self._last: dict[str, _Observation] = {}
        self._samples: list[SpeedSample] = []
        self._used: set[str] = set()
        self._replicas = 0
        self._loaned = False

    def continue_from(self, before: EngineObserver) -> None:
        """Start with the last state of the engines in the round `before`, as idle engines.

        Its speed remains known, unless the layout has changed.
        """
        if before._tensor_parallel == self._tensor_parallel:
            self._past = (*before._past, before.speed())[-ROUNDS_KEPT:]
        for name, last in before._last.items():
            self._last[name] = _Observation(last.time, last.boot, replace(last.stats, running=0, waiting=0))

    def record_submitted(self, requests: Mapping[str, Sequence[GenerateRequest]], replicas: int, now: float) -> None:
        """Record requests, submitted while `replicas` were available.

        In a round that is restored near its end, few of them get requests.
        """
        self._replicas = max(self._replicas, replicas)
        for name, its in requests.items():
            self._used.add(name)
            last = self._last.get(name)
            if last is not None:
                tokens = sum(len(one.prompt_token_ids) + len(one.prefix_token_ids) for one in its)
                last.time, last.starting = now, tokens

    def record_loan(self) -> None:
        """Record that machines are loaned from now on, so that the others have more work."""
        self._loaned = True

    def record(self, replica: str, report: ReplicaReport, now: float) -> None:
        """Record the answer to a poll."""
        if report.weight_version is None:
            # The engine is asleep and does not know its capacity.
            return
        stats, last = report.stats, self._last.get(replica)
        if last is None or last.boot != report.boot:
            self._last[replica] = _Observation(now, report.boot, stats)
            return
        made = stats.generated_tokens_total - last.stats.generated_tokens_total
        if last.starting and (stats.waiting or not 0 < stats.running <= made):
            # The launch has not arrived, is not fully admitted, or is still in prefill.
            return
        self._learn(last, stats, made, now - last.time)
        self._last[replica] = _Observation(now, report.boot, stats)

    def speed(self) -> Speed:
        """Return the speed samples of the round so far."""
        # Engines that sleep since a layout switch were observed in the former layout.
        names = self._used & self._last.keys() or self._last.keys()
        stats = [self._last[name].stats for name in names]
        return Speed(
            replicas=self._replicas,
            kv_tokens=min((one.kv_tokens for one in stats), default=0),
            max_running=min((one.max_running for one in stats), default=0),
            stretches=binned(self._samples),
        )

    def kv_tokens(self, replica: str) -> int:
        """Return the capacity of a replica's KV cache; 0 before its first poll."""
        last = self._last.get(replica)
        return last.stats.kv_tokens if last is not None else 0

    def engine_speed(self) -> EngineSpeed | None:
        """Return an engine's speed, from this round and earlier ones; None without a sample."""
        speeds = (*self._past, self.speed())
        law, batches = fit_latency(speeds), [one.batch for speed in speeds for one in speed.stretches]
        if law is None:
            return None
        most = max(1, int(max(batches)))
        return EngineSpeed(law, min(most, ceil(min(batches))), most)

    def _learn(self, last: _Observation, stats: EngineStats, made: int, seconds: float) -> None:
        before = last.stats
        first = before.running if not last.starting else stats.running
        most = max(first, stats.running)
        if made < most or not first or seconds <= 0 or stats.preemptions_total != before.preemptions_total:
            return
        # A poll returns when a response ends. If one ended, the batch had the larger size until then.
        batch = most if abs(first - stats.running) <= 1 else (first + stats.running) / 2
        kv_use = (before.kv_use + stats.kv_use) / 2
        sample = SpeedSample(made / batch, batch, kv_use * stats.kv_tokens, seconds, last.starting, self._loaned)
        if last.starting:
            learned = before.running == 0
        else:
            learned = not stats.waiting and not before.waiting and same_batch(first, stats.running)
        if learned:
            self._samples.append(sample)
            if len(self._samples) > MAX_SAMPLES:
                self._samples = list(binned(self._samples))
