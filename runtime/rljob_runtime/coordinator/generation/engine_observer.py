"""Engine observer: samples of the engines' speed from the polls of a round.

Engines measure their steps. Those between two polls are a sample; an engine that waits for requests or for tools makes
none. The observer sends no request of its own. `perf_model.observed_speed` fits a latency model to the samples. Samples
of two layouts are never fitted together: a wider engine has another latency model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rljob_runtime.coordinator.fleet.machine import SLEEPING
from rljob_runtime.coordinator.generation.observed_engines import engine_speed
from rljob_runtime.perf_model.observed_speed import Speed, SpeedSample, binned, newest_speeds
from rljob_runtime.perf_model.step_totals import StepTotals
from rljob_runtime.protocols import EngineProfile, EngineStats, LoadTiming, ReplicaReport
from rljob_runtime.scheduling.lending.gain import EngineSpeed

MAX_SAMPLES = 256
"""Number of samples of a layout above which they are binned."""


@dataclass
class _Observation:
    """A replica at its last poll."""

    boot: str
    stats: EngineStats
    tensor_parallel: int


@dataclass
class _LayoutObservations:
    """The observations of the engines of one tensor parallel size, and their speed in earlier rounds."""

    past: tuple[Speed, ...] = ()
    gauges: dict[str, EngineStats] = field(default_factory=dict)
    """The last statistics of each replica in this layout."""
    samples: list[SpeedSample] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    replicas: int = 0

    def add(self, sample: SpeedSample) -> None:
        self.samples.append(sample)
        if len(self.samples) > MAX_SAMPLES:
            self.samples = list(binned(self.samples))

    def speed(self) -> Speed:
        # Engines that sleep since a layout switch were observed, but got no request.
        names = self.used & self.gauges.keys() or self.gauges.keys()
        stats = [self.gauges[name] for name in names]
        return Speed(
            replicas=self.replicas,
            kv_tokens=min((one.kv_tokens for one in stats), default=0),
            max_running=min((one.max_running for one in stats), default=0),
            stretches=binned(self.samples),
            square_tokens=max((one.square_tokens for one in stats), default=0.0),
        )


def one_accelerator(replica: str) -> int:
    """Return 1: the layout of replicas that have only one."""
    return 1


def sample_of(steps: StepTotals, loaned: bool) -> SpeedSample:
    """Return the sample of consecutive steps. `loaned`: whether other machines of the round were on loan."""
    count = steps.steps
    means = steps.sequences / count, steps.context / count
    return SpeedSample(count, *means, steps.seconds, steps.prompt_tokens, loaned, prompt_squares=steps.prompt_squares)


def samples_of(timings: Iterable[LoadTiming]) -> list[SpeedSample]:
    """Return what a profile says of an engine's speed, marked as such. A part that took no time says nothing."""
    found = []
    for one in timings:
        tokens, squares = one.batch * one.prompt_tokens, one.batch * one.prompt_tokens**2
        found.append(SpeedSample(one.steps, one.batch, one.context, one.steps * one.step_seconds, profiled=True))
        found.append(
            SpeedSample(1, one.batch, tokens, one.prefill_seconds, tokens, profiled=True, prompt_squares=squares)
        )
    return [one for one in found if one.seconds > 0]


class EngineObserver:
    """The observations of one round. `layout_of` returns the tensor parallel size of a replica's engine.

    `past`: speeds of earlier rounds, by size."""

    def __init__(
        self,
        layout_of: Callable[[str], int] = one_accelerator,
        past: Mapping[int, Sequence[Speed]] | None = None,
    ) -> None:
        self._layout_of = layout_of
        self._layouts = {size: _LayoutObservations(tuple(speeds)) for size, speeds in (past or {}).items()}
        self._last: dict[str, _Observation] = {}
        self._loaned = False

    def continue_from(self, before: EngineObserver) -> None:
        """Start with the last state of the engines in the round `before`, as idle ones. Their speed remains known."""
        for size, seen in before._layouts.items():
            speed = seen.speed()
            self._layouts[size] = _LayoutObservations(newest_speeds(seen.past, speed))
        for name, last in before._last.items():
            idle = replace(last.stats, running=0, waiting=0)
            self._last[name] = _Observation(last.boot, idle, last.tensor_parallel)
            self._layout(last.tensor_parallel).gauges[name] = idle

    def record_submitted(self, names: Collection[str], available: Collection[str]) -> None:
        """Record that these replicas got requests, while those `available` were.

        In a round that is restored near its end, few of them get requests.
        """
        for size, count in Counter(map(self._layout_of, available)).items():
            seen = self._layout(size)
            seen.replicas = max(seen.replicas, count)
        for name in names:
            self._layout(self._layout_of(name)).used.add(name)

    def record_profile(self, tensor_parallel: int, profiles: Mapping[str, EngineProfile]) -> None:
        """Record what the engines of a machine measured of a layout while they rested, by replica."""
        seen = self._layout(tensor_parallel)
        seen.replicas = max(seen.replicas, len(profiles))
        for name, profile in profiles.items():
            seen.gauges[name] = profile.stats
            for sample in samples_of(profile.timings):
                seen.add(sample)

    def record_loan(self) -> None:
        """Record that machines are loaned from now on, so that the others have more work."""
        self._loaned = True

    def record(self, replica: str, report: ReplicaReport) -> None:
        """Record the answer to a poll."""
        size = self._layout_of(replica)
        if report.weight_version is None or size == SLEEPING:
            # The engine is asleep and does not know its capacity.
            return
        stats, last = report.stats, self._last.get(replica)
        self._layout(size).gauges[replica] = stats
        self._last[replica] = _Observation(report.boot, stats, size)
        if last is not None and last.boot == report.boot and last.tensor_parallel == size:
            self._learn(last.stats, stats, size)

    def speeds(self) -> dict[int, Speed]:
        """Return the speed of the round so far, by tensor parallel size: of layouts with samples or requests."""
        layouts = ((size, seen, seen.speed()) for size, seen in sorted(self._layouts.items()))
        return {size: speed for size, seen, speed in layouts if speed.stretches or seen.used}

    def kv_tokens(self, replica: str) -> int:
        """Return the capacity of a replica's KV cache; 0 before its first poll in its present layout."""
        stats = self._stats(replica)
        return stats.kv_tokens if stats is not None else 0

    def _stats(self, replica: str) -> EngineStats | None:
        last = self._last.get(replica)
        known = last is not None and last.tensor_parallel == self._layout_of(replica)
        return last.stats if last is not None and known else None

    def engine_speed(self, tensor_parallel: int) -> EngineSpeed | None:
        """Return the speed of an engine of this size, from this round and earlier ones; None without a sample."""
        return engine_speed(self.all_speeds().get(tensor_parallel, ()))

    def all_speeds(self) -> dict[int, tuple[Speed, ...]]:
        """Return the speeds of engines of each observed size, in earlier rounds and, last, in this one."""
        return {size: (*seen.past, seen.speed()) for size, seen in self._layouts.items()}

    def waiting(self, replica: str) -> int:
        """Return the requests that wait in a replica's engine; 0 before its first poll in its present layout."""
        stats = self._stats(replica)
        return stats.waiting if stats is not None else 0

    def _layout(self, tensor_parallel: int) -> _LayoutObservations:
        return self._layouts.setdefault(tensor_parallel, _LayoutObservations())

    def _learn(self, before: EngineStats, now: EngineStats, size: int) -> None:
        """Learn from the steps between two polls, whatever began and ended between them."""
        for steps in (now.decode - before.decode, now.prefill - before.prefill):
            if steps.steps > 0 and steps.seconds > 0:
                self._layout(size).add(sample_of(steps, self._loaned))
