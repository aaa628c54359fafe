"""`rljob profile`: what an engine's steps take over batch × context × TP, in our replica, within a bounded time.

Each load of the sampling plan (`perf_model.sampling_plan`) is one dummy prefix and a short decoding window (PAT §4.2).
The first pass takes as many of the plan's points as its share of the time allows; further passes repeat them, so that
the median of a load is of moments that lie far apart. Between the passes rounds of uneven lengths are played, which no
fit sees: they say how well it foretells.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from rljob_runtime.perf_model.profile import PlayedRound, Profile, Sample, Subject, medians
from rljob_runtime.perf_model.sampling_plan import Point, sampling_plan
from rljob_runtime.rollout.profiling.harness import ProfilingHarness, tolerance
from rljob_runtime.rollout.profiling.timed_engine import Timing, decode_timing, prefill_timing

PASSES = 3
SAMPLED = 0.7
"""Of the time of a pass; the rest is for rounds."""
STEPS = 8
"""Decode steps at each visit of a load."""
CORNERS = 4
"""Points without which there is no law: they are measured however long they take."""
LEAST_LENGTH = 4
LONGEST = 96
"""Tokens of a response in a round: enough to drain, few enough to play several."""


@dataclass(frozen=True)
class Limits:
    """What is worth measuring: sequences at a time, tokens of one, and how long all of it may take."""

    batch: int
    context: int
    seconds: float


@dataclass
class ProfilingObserver:
    """Whoever looks on: is told what is being measured and how many seconds of the time are spent, and may stop it
    between two loads."""

    report: Callable[[str, float], None] = lambda doing, spent: None
    stopped: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.perf_counter


@dataclass
class _Measurements:
    kv_tokens: dict[int, int] = field(default_factory=dict)
    decode: list[Sample] = field(default_factory=list)
    prefill: list[Sample] = field(default_factory=list)
    rounds: list[PlayedRound] = field(default_factory=list)
    spent: float = 0.0
    """Seconds that were measured in former layouts."""


async def measure(
    harness: ProfilingHarness, subject: Subject, sizes: Sequence[int], limits: Limits, observer: ProfilingObserver
) -> Profile:
    """The profile of these tensor parallel sizes; each gets its part of the time. Stopped early, it is of what was
    measured by then.

    Raises `Refused` where a layout has no engine, `ValueError` where the engine is too small to be sampled.
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
) -> tuple[PlayedRound, ...]:
    """Rounds alone, to see whether a profile still holds: at most so many, at least one, within the time."""
    observer.report(f"TP {tensor_parallel}: starting the engine", 0.0)
    kv_tokens, results = await harness.switch_layout(tensor_parallel), _Measurements()
    layout = _Layout(harness, tensor_parallel, kv_tokens, limits, observer, results)
    await layout.rounds(await layout.warm_up() + limits.seconds, most)
    return tuple(results.rounds)


class _Layout:
    """One tensor parallel size."""

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
        self._played = 0
        self._began: float | None = None

    async def measure(self, seconds: float) -> None:
        """All passes, and the rounds between them."""
        began, points = await self.warm_up(), list(self._plan)
        for number in range(PASSES):
            points = await self._visit(points, number, began + seconds * (number + SAMPLED) / PASSES)
            await self.rounds(began + seconds * (number + 1) / PASSES, self._played + len(points))

    async def warm_up(self) -> float:
        """Nothing is taken from what an engine does first. When it is over."""
        self._report("warming up")
        for point in (self._plan[0], max(self._plan, key=lambda point: (point.batch, -point.context))):
            await self._harness.sustain(point.batch, point.context, 2)
        self._began = self._observer.clock()
        return self._began

    def _report(self, doing: str) -> None:
        spent = self._observer.clock() - self._began if self._began is not None else 0.0
        self._observer.report(f"TP {self._size}: {doing}", self._results.spent + spent)

    async def _visit(self, points: Sequence[Point], number: int, end: float) -> list[Point]:
        """Measure these in order, as far as there is time. Those that were."""
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
        """Play rounds as long as there is time; one at least."""
        first = True
        while (first or self._observer.clock() < end) and self._played < most and not self._observer.stopped():
            prompt, lengths = _uneven(self._played, self._limits, self._plan)
            self._report(f"a round of {len(lengths)} responses")
            seconds = await self._harness.run_round(prompt, lengths)
            self._results.rounds.append(
                PlayedRound(tensor_parallel=self._size, prompt_tokens=prompt, lengths=tuple(lengths), seconds=seconds)
            )
            self._played, first = self._played + 1, False

    def _sample(self, timing: Timing) -> Sample:
        return Sample(
            tensor_parallel=self._size,
            batch=timing.batch,
            context=timing.context,
            seconds=timing.seconds,
            replica_seconds=max(0.0, timing.replica_seconds),
        )


def _uneven(number: int, limits: Limits, plan: Sequence[Point]) -> tuple[int, list[int]]:
    """Prompt tokens and response lengths of the round of this number: many short ones and few long ones, batches and
    tails other than the plan's."""
    random = Random(number)
    # What the plan has room for at its largest batch, every sequence of the round has.
    room = max(point.context for point in plan if point.batch == max(plan).batch)
    batch = max(2, round(limits.batch * (0.75, 0.2, 0.4)[number % 3]))
    prompt = max(1, round(room * (0.3, 0.5, 0.4, 0.2)[number % 4]))
    longest = max(LEAST_LENGTH + 1, round(min(LONGEST, room - prompt) * (1.0, 0.6, 0.8)[number // 2 % 3]))
    lengths = [round(math.exp(random.uniform(math.log(LEAST_LENGTH), math.log(longest)))) for _ in range(batch - 1)]
    return prompt, [longest, *lengths]
