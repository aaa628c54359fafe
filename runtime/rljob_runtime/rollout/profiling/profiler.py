"""Profiler: measures an engine's steps over batch × context × TP, in our replica, within a limited time.

Each load of the sampling plan (`perf_model.sampling_plan`) is one dummy prefix and a short decoding window (PAT §4.2).
The first pass visits as many of the plan's points as its share of the time allows. Further passes repeat them, so that
the median of a load covers moments that lie far apart. Between the passes, rounds of uneven lengths run. No fit uses
them, so they show how well the fit predicts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from rljob_runtime.perf_model.profile import Profile, ProfiledRound, Sample, Subject, medians
from rljob_runtime.perf_model.sampling_plan import Point, sampling_plan
from rljob_runtime.rollout.profiling.harness import ProfilingHarness, tolerance
from rljob_runtime.rollout.profiling.timed_engine import Timing, decode_timing, prefill_timing

PASSES = 3
SAMPLED = 0.7
"""Share of a pass's time for sampling; the rest is for rounds."""
STEPS = 8
"""Decode steps at each visit of a load."""
CORNERS = 4
"""Points without which no latency model can be fitted: they are measured regardless of the time."""
LEAST_LENGTH = 4
LONGEST = 96
"""Tokens of the longest response in a round: enough to drain, few enough for several rounds."""


@dataclass(frozen=True)
class Limits:
    """What to measure: sequences at the same time, tokens of one sequence, and seconds in total."""

    batch: int
    context: int
    seconds: float


@dataclass
class ProfilingObserver:
    """Callbacks of a profile: progress with the seconds spent, a request to stop between two loads, and the clock."""

    report: Callable[[str, float], None] = lambda doing, spent: None
    stopped: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.perf_counter


@dataclass
class _Measurements:
    kv_tokens: dict[int, int] = field(default_factory=dict)
    decode: list[Sample] = field(default_factory=list)
    prefill: list[Sample] = field(default_factory=list)
    rounds: list[ProfiledRound] = field(default_factory=list)
    spent: float = 0.0
    """Seconds measured in the layouts before."""


async def measure(
    harness: ProfilingHarness, subject: Subject, sizes: Sequence[int], limits: Limits, observer: ProfilingObserver
) -> Profile:
    """Measure the profile of these tensor parallel sizes; each gets an equal part of the time.

    A profile that is stopped early contains what was measured by then. Raises `Refused` if a layout has no engine, and
    `ValueError` if the engine is too small to be sampled.
    """
    results = _Measurements()
    for size in sizes:
        observer.report(f"TP {size}: starting the engine", results.spent)
        kv_tokens = await harness.switch_layout(size)
        if observer.stopped():
            break
        await _Layout(harness, size, kv_tokens, limits, observer, results).measure(limits.seconds / len(sizes))
        results.kv_tokens[size] = kv_tokens
        results.spent += limits.seconds / len(sizes)
    return Profile(
        subject=subject,
        kv_tokens=results.kv_tokens,
        decode=medians(results.decode),
        prefill=medians(results.prefill),
        rounds=tuple(results.rounds),
    )


async def run_rounds(
    harness: ProfilingHarness, tensor_parallel: int, limits: Limits, observer: ProfilingObserver, most: int = 8
) -> tuple[ProfiledRound, ...]:
    """Run rounds only, to check a profile: at least one, at most `most`, within the time."""
    observer.report(f"TP {tensor_parallel}: starting the engine", 0.0)
    kv_tokens, results = await harness.switch_layout(tensor_parallel), _Measurements()
    layout = _Layout(harness, tensor_parallel, kv_tokens, limits, observer, results)
    await layout.rounds(await layout.warm_up() + limits.seconds, most)
    return tuple(results.rounds)


class _Layout:
    """Measurement of one tensor parallel size."""

    def __init__(
        self,
        harness: ProfilingHarness,
        size: int,
        kv_tokens: int,
        limits: Limits,
        observer: ProfilingObserver,
        results: _Measurements,
    ) -> None:
        self._harness = harness
        self._size = size
        self._observer = observer
        self._results = results
        self._limits = limits
        self._plan = sampling_plan(limits.batch, limits.context, kv_tokens, STEPS + tolerance(kv_tokens))
        self._rounds_run = 0
        self._began: float | None = None

    async def measure(self, seconds: float) -> None:
        """Run all passes, and the rounds between them."""
        began, points = await self.warm_up(), list(self._plan)
        for number in range(PASSES):
            points = await self._visit(points, number, began + seconds * (number + SAMPLED) / PASSES)
            await self.rounds(began + seconds * (number + 1) / PASSES, self._rounds_run + len(points))

    async def warm_up(self) -> float:
        """Run loads that are not recorded, because an engine's first steps are slow; return the time at the end."""
        self._report("warming up")
        for point in (self._plan[0], max(self._plan, key=lambda point: (point.batch, -point.context))):
            await self._harness.sustain(point.batch, point.context, 2)
        self._began = self._observer.clock()
        return self._began

    def _report(self, doing: str) -> None:
        spent = self._observer.clock() - self._began if self._began is not None else 0.0
        self._observer.report(f"TP {self._size}: {doing}", self._results.spent + spent)

    async def _visit(self, points: Sequence[Point], number: int, end: float) -> list[Point]:
        """Measure these points in order, as time allows; return the points to repeat."""
        for place, point in enumerate(points):
            late = self._observer.clock() >= end and (number > 0 or place >= CORNERS)
            if late or self._observer.stopped():
                return list(points[:place]) if number == 0 else list(points)
            self._report(f"pass {number + 1} of {PASSES}, {point.batch} x {point.context} tokens of context")
            await self._measure(point)
        return list(points)

    async def _measure(self, point: Point) -> None:
        steps = await self._harness.sustain(point.batch, point.context, STEPS)
        decode, prefill = decode_timing(steps, point.batch, point.context, STEPS), prefill_timing(steps, point.context)
        if decode is not None:
            self._results.decode.append(self._sample(decode))
        if prefill is not None:
            self._results.prefill.append(self._sample(prefill))

    async def rounds(self, end: float, most: int) -> None:
        """Run rounds while there is time, at least one."""
        first = True
        while (first or self._observer.clock() < end) and self._rounds_run < most and not self._observer.stopped():
            prompt, lengths = _uneven(self._rounds_run, self._limits, self._plan)
            self._report(f"a round of {len(lengths)} responses")
            seconds = await self._harness.run_round(prompt, lengths)
            self._results.rounds.append(
                ProfiledRound(tensor_parallel=self._size, prompt_tokens=prompt, lengths=tuple(lengths), seconds=seconds)
            )
            self._rounds_run, first = self._rounds_run + 1, False

    def _sample(self, timing: Timing) -> Sample:
        return Sample(
            tensor_parallel=self._size,
            batch=timing.batch,
            context=timing.context,
            seconds=timing.seconds,
            replica_seconds=max(0.0, timing.replica_seconds),
        )


def _uneven(number: int, limits: Limits, plan: Sequence[Point]) -> tuple[int, list[int]]:
    """Return prompt tokens and response lengths of a round: many short ones, few long ones.

    Batches and tails differ from the plan's.
    """
    random = Random(number)
    # Every sequence of the round gets as much room as the plan has at its largest batch.
    room = max(point.context for point in plan if point.batch == max(plan).batch)
    batch = max(2, round(limits.batch * (0.75, 0.2, 0.4)[number % 3]))
    prompt = max(1, round(room * (0.3, 0.5, 0.4, 0.2)[number % 4]))
    longest = max(LEAST_LENGTH + 1, round(min(LONGEST, room - prompt) * (1.0, 0.6, 0.8)[number // 2 % 3]))
    lengths = [round(math.exp(random.uniform(math.log(LEAST_LENGTH), math.log(longest)))) for _ in range(batch - 1)]
    return prompt, [longest, *lengths]
