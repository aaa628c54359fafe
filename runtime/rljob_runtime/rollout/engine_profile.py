"""Engine profile: loads of its own on a resting engine, each step timed, in the engine's thread.

A profile must never be in the way: it ends at the first command, after the step in progress, and its work is in no
total of the engine. No trajectory has the ids of its requests. All prompts differ, so that no prefix cache helps.

The load with the most tokens also shows how fast KV moves, if the engine moves any: a switch measures only the state
that it chose, and a resting engine measures the other one at no cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from random import Random
from statistics import fmean, median

from rljob_runtime.perf_model.sampling_plan import Point
from rljob_runtime.protocols import EngineProfile, EngineStats, KvStats, LoadTiming, ProfileLimits
from rljob_runtime.rollout.engines.base import Engine, EngineRequest, RequestRejected, StepOutput
from rljob_runtime.scheduling.adaptive_tp.idle_profile import LEEWAY, STEPS, loads_of

PREFIX = "profile/"
TOKENS = range(3, 35)
"""Token ids of prompts: every vocabulary has them, and tokenizers keep their special tokens below."""
TOTALS = ("preemptions_total", "generated_tokens_total", "prompt_tokens_total", "aborted_total")
"""Totals without the work of profiles."""


class EngineProfiler:
    """The profiles of one engine slot, one at a time. `clock`: seconds.

    `probe` moves the KV of running requests to a file and back, and returns what it took; None if none moves."""

    def __init__(self, clock: Callable[[], float], probe: Callable[[Sequence[str]], KvStats] | None = None) -> None:
        self._clock = clock
        self._probe = probe
        self._profile: _Profile | None = None
        self._hidden = dict.fromkeys(TOTALS, 0)
        self._profiles = 0
        self._seconds = 0.0

    @property
    def runs(self) -> bool:
        """Whether a profile runs."""
        return self._profile is not None

    def begin(self, engine: Engine, limits: ProfileLimits) -> Future[EngineProfile]:
        """Begin a profile of the engine, which holds no request. The future gets the result when the profile ends."""
        self.end(engine)
        profile = self._profile = _Profile(engine.stats(), limits, self._clock())
        self._go_on(engine, profile)
        return profile.result

    def stepped(self, engine: Engine, outputs: list[StepOutput]) -> list[StepOutput]:
        """Take the outputs of a profile's requests after a step; return the others."""
        own = [one for one in outputs if one.id.startswith(PREFIX)]
        if not own:
            return outputs
        if (profile := self._profile) is not None and profile.record(own, self._clock()):
            if self._probe is not None and profile.is_at_largest and self._clock() < profile.until:
                profile.moved = self._probe(profile.load.ids)
            engine.abort(profile.load.ids)
            self._go_on(engine, profile)
        return [one for one in outputs if not one.id.startswith(PREFIX)]

    def end(self, engine: Engine) -> None:
        """End the profile, if one runs: its result is what was measured so far."""
        if (profile := self._profile) is None:
            return
        engine.abort(profile.load.ids)
        stats = engine.stats()
        for name in TOTALS:
            self._hidden[name] += getattr(stats, name) - getattr(profile.before, name)
        self._profile = None
        self._profiles += 1
        self._seconds += self._clock() - profile.since
        profile.result.set_result(EngineProfile(tuple(profile.timings), self.without_profiles(stats), profile.moved))

    def close(self, error: Exception) -> None:
        """Fail the profile that runs: its engine has ended."""
        if (profile := self._profile) is not None:
            self._profile = None
            profile.result.set_exception(error)

    def without_profiles(self, stats: EngineStats) -> EngineStats:
        """Return the statistics without the work of profiles, which has its own totals."""
        totals = {name: getattr(stats, name) - hidden for name, hidden in self._hidden.items()}
        if (profile := self._profile) is not None:
            totals = {name: min(total, getattr(profile.before, name)) for name, total in totals.items()}
        return replace(stats, **totals, profiles_total=self._profiles, profile_seconds_total=self._seconds)

    def _go_on(self, engine: Engine, profile: _Profile) -> None:
        """Start the next load that the engine accepts, or end the profile."""
        while self._clock() < profile.until and (requests := profile.next_requests()):
            try:
                for request in requests:
                    engine.check(request)
            except RequestRejected:
                continue
            for request in requests:
                engine.add(request)
            profile.load.began = self._clock()
            return
        self.end(engine)


class _Profile:
    """A profile that runs."""

    def __init__(self, before: EngineStats, limits: ProfileLimits, now: float) -> None:
        self.before = before
        self.since = now
        self.until = now + limits.seconds
        self.result: Future[EngineProfile] = Future()
        self.timings: list[LoadTiming] = []
        self.load = _Load(Point(0, 0), ())
        points = loads_of(limits, before)
        self._points: Iterator[Point] = iter(points)
        self._largest = max(points, key=lambda point: point.batch * point.context, default=None)
        self.moved = KvStats()
        self._numbers = itertools.count(1)
        self._random = Random(0)

    @property
    def is_at_largest(self) -> bool:
        """Whether the load that runs has the most tokens, and was measured."""
        return self.load.timing is not None and self.load.point == self._largest

    def next_requests(self) -> list[EngineRequest]:
        """Return the requests of the next load; none after the last one."""
        point = next(self._points, None)
        if point is None:
            return []
        requests = [
            EngineRequest(
                id=f"{PREFIX}{next(self._numbers)}",
                token_ids=tuple(self._random.choices(TOKENS, k=point.context)),
                max_new_tokens=STEPS + LEEWAY,
                seed=number,
            )
            for number in range(point.batch)
        ]
        self.load = _Load(point, [request.id for request in requests])
        return requests

    def record(self, outputs: Sequence[StepOutput], now: float) -> bool:
        """Record a step; return whether its load has ended."""
        ended = self.load.record(outputs, now)
        if (timing := self.load.timing) is not None:
            self.timings.append(timing)
        return ended or now >= self.until


class _Load:
    """A load that runs: prefill until each sequence has a token, then decode steps of all."""

    def __init__(self, point: Point, ids: Sequence[str]) -> None:
        self.ids = list(ids)
        self.began = 0.0
        self.point = point
        self._made: dict[str, int] = {}
        self._prefill: float | None = None
        self._steps: list[float] = []
        self._contexts: list[float] = []
        self._last = 0.0

    def record(self, outputs: Sequence[StepOutput], now: float) -> bool:
        """Record a step; return whether the load has ended."""
        for one in outputs:
            self._made[one.id] = self._made.get(one.id, 0) + len(one.token_ids)
        if self._prefill is not None and len(outputs) == len(self.ids):
            self._steps.append(now - self._last)
            self._contexts.append(self.point.batch * self.point.context + sum(self._made.values()))
        elif self._prefill is None and len(self._made) == len(self.ids):
            self._prefill = now - self.began
        self._last = now
        return len(self._steps) == STEPS or any(one.finish_reason is not None for one in outputs)

    @property
    def timing(self) -> LoadTiming | None:
        """What was measured; None before the last step."""
        if self._prefill is None or len(self._steps) < STEPS:
            return None
        batch, prompt = self.point.batch, self.point.context
        return LoadTiming(batch, prompt, self._prefill, STEPS, median(self._steps), fmean(self._contexts))
