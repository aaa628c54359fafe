"""A profile of a resting engine: exact times on a model of an engine, and a real one that goes on as if nothing was."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pytest
from transformers import LlamaForCausalLM

from rljob_runtime.protocols import EngineProfile, EngineStats, KvStats, ProfileLimits, Refused
from rljob_runtime.rollout.engine_profile import EngineProfiler
from rljob_runtime.rollout.engines.base import (
    EngineRequest,
    EngineSettings,
    RequestRejected,
    StepOutput,
)
from rljob_runtime.rollout.engines.factory import make_engine
from rljob_runtime.rollout.replica import RolloutReplica
from rljob_runtime.scheduling.adaptive_tp.idle_profile import STEPS
from tests.support.rollout.engines import EOS, Publisher
from tests.support.rollout.reader import Reader, ask, key

LIMITS = ProfileLimits(batch=4, context=300, seconds=1000.0)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class TimedSteps:
    """An engine whose steps take known times: it prefills one request a step, and then decodes all together."""

    clock: Clock
    longest: int = 10_000
    held: dict[str, EngineRequest] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    generated: int = 0
    prompts: int = 0
    aborted: int = 0

    def check(self, request: EngineRequest) -> None:
        if len(request.token_ids) > self.longest:
            raise RequestRejected("too long")

    def add(self, request: EngineRequest) -> None:
        assert request.id not in self.held
        self.held[request.id] = request
        self.prompts += len(request.token_ids)

    def abort(self, ids: list[str]) -> None:
        for one in ids:
            self.aborted += self.held.pop(one, None) is not None
            self.made.pop(one, None)

    def step(self) -> list[StepOutput]:
        fresh = next((one for one in self.held if one not in self.made), None)
        if fresh is not None:
            self.clock.now += 0.1 * len(self.held[fresh].token_ids)
            self.made[fresh] = 0
        else:
            self.clock.now += 1.0 + 0.5 * len(self.made)
        moved = [fresh] if fresh is not None else list(self.made)
        for one in moved:
            self.made[one] += 1
        self.generated += len(moved)
        return [StepOutput(one, (7,), (0.0,)) for one in moved]

    def stats(self) -> EngineStats:
        totals = 0, self.generated, self.prompts, 0, 0, self.aborted
        return EngineStats(len(self.held), 0, 0.0, *totals, kv_tokens=100_000, max_running=8)


@dataclass
class ProfilerHarness:
    clock: Clock = field(default_factory=Clock)
    longest: int = 10_000

    def __post_init__(self) -> None:
        self.engine = TimedSteps(self.clock, self.longest)
        self.profiler = EngineProfiler(self.clock)

    def begin(self, limits: ProfileLimits = LIMITS) -> Future[EngineProfile]:
        return self.profiler.begin(self.engine, limits)  # type: ignore[arg-type]

    def run(self, running: Future[EngineProfile], most: int = 10_000) -> int:
        """Step until the profile has ended; return the steps."""
        for step in range(most):
            if running.done():
                return step
            assert self.profiler.stepped(self.engine, self.engine.step()) == []  # type: ignore[arg-type]
            assert self.profiler.without_profiles(self.engine.stats()).computed_tokens == 0
        return most


def test_each_load_is_timed_exactly_and_leaves_no_trace() -> None:
    harness = ProfilerHarness()
    running = harness.begin()
    harness.run(running)
    profile = running.result()
    assert [(one.batch, one.prompt_tokens) for one in profile.timings[:4]] == [(1, 16), (1, 252), (4, 16), (4, 252)]
    for one in profile.timings:
        assert one.prefill_seconds == pytest.approx(0.1 * one.batch * one.prompt_tokens)
        assert one.step_seconds == pytest.approx(1.0 + 0.5 * one.batch)
        assert one.steps == STEPS
        assert one.context == pytest.approx(one.batch * (one.prompt_tokens + 1 + (STEPS + 1) / 2))
    assert harness.engine.held == {}
    stats = profile.stats
    assert (stats.generated_tokens_total, stats.prompt_tokens_total, stats.aborted_total) == (0, 0, 0)
    assert (stats.profiles_total, stats.profile_seconds_total) == (1, pytest.approx(harness.clock.now))
    assert harness.engine.generated > 0


def test_kv_is_moved_once_at_the_largest_load_that_was_measured() -> None:
    probed: list[list[str]] = []
    harness = ProfilerHarness()

    def probe(ids: Sequence[str]) -> KvStats:
        assert set(ids) == harness.engine.held.keys(), "the requests are still held"
        probed.append([len(harness.engine.held[one].token_ids) for one in ids])
        return KvStats(exported_bytes=7)

    harness.profiler = EngineProfiler(harness.clock, probe)
    running = harness.begin()
    harness.run(running)
    assert probed == [[252] * 4]
    assert running.result().moved == KvStats(exported_bytes=7)
    assert len(running.result().timings) > 4, "loads follow the probe"


def test_no_kv_is_moved_after_the_end_of_a_profile() -> None:
    probed: list[Sequence[str]] = []
    harness = ProfilerHarness()
    harness.profiler = EngineProfiler(harness.clock, lambda ids: probed.append(ids) or KvStats())  # type: ignore[func-returns-value]
    seconds = 0.1 * (16 + 252 + 4 * 16 + 4 * 252) + 2 * STEPS * 1.5 + 2 * STEPS * 3.0
    running = harness.begin(replace(LIMITS, seconds=seconds - 0.5))
    harness.run(running)
    assert len(running.result().timings) == 4, "the largest load was measured with the last step"
    assert probed == []


def test_a_profile_ends_in_time() -> None:
    harness = ProfilerHarness()
    running = harness.begin(replace(LIMITS, seconds=60.0))
    harness.run(running)
    assert 60.0 <= harness.clock.now <= 60.0 + 3.0, "the step in progress, and no more"
    assert len(running.result().timings) == 2
    assert harness.engine.held == {}


def test_a_command_ends_a_profile_with_what_was_measured() -> None:
    harness = ProfilerHarness()
    running = harness.begin()
    harness.run(running, most=30)
    assert not running.done()
    harness.profiler.end(harness.engine)  # type: ignore[arg-type]
    assert harness.engine.held == {}
    assert running.result().timings
    harness.profiler.end(harness.engine)  # type: ignore[arg-type]
    assert running.result().stats.profiles_total == 1


def test_totals_go_on_after_a_profile() -> None:
    harness = ProfilerHarness()
    harness.run(harness.begin())
    harness.engine.add(EngineRequest("own", (1, 2, 3), 4))
    outputs = harness.engine.step()
    assert harness.profiler.stepped(harness.engine, outputs) is outputs  # type: ignore[arg-type]
    stats = harness.profiler.without_profiles(harness.engine.stats())
    assert (stats.generated_tokens_total, stats.prompt_tokens_total) == (1, 3)


def test_loads_that_the_engine_rejects_are_left_out() -> None:
    harness = ProfilerHarness(longest=100)
    running = harness.begin()
    harness.run(running)
    assert {one.prompt_tokens for one in running.result().timings} <= set(range(101))
    assert len(running.result().timings) >= 2


def test_a_profile_of_an_engine_that_ended_fails() -> None:
    harness = ProfilerHarness()
    running = harness.begin()
    harness.profiler.close(RuntimeError("gone"))
    with pytest.raises(RuntimeError, match="gone"):
        running.result()


async def test_a_real_engine_is_profiled_and_goes_on_as_before(
    settings: EngineSettings, publisher: Publisher, model: LlamaForCausalLM
) -> None:
    version = publisher.publish(model)
    replica = RolloutReplica("r0", lambda size, devices: make_engine("Reference", settings), frozenset({EOS}))
    try:
        with pytest.raises(Refused, match="no weights"):
            await replica.profile(1, LIMITS)
        await replica.switch_layout(1, 1)
        await replica.load(1, version)
        profile = await replica.profile(1, ProfileLimits(4, 120, 30.0))
        assert {one.batch for one in profile.timings} >= {1, 4}
        assert all(one.step_seconds > 0 and one.prefill_seconds > 0 for one in profile.timings)
        assert profile.stats.computed_tokens == 0
        # A request in the middle of a profile is served, and no token of the profile is among its own.
        running = asyncio.ensure_future(replica.profile(1, ProfileLimits(4, 200, 30.0)))
        await asyncio.sleep(0.05)
        reader = Reader(replica)
        await replica.submit(1, [ask(0, version)])
        assert (await running).stats.profiles_total == 2
        tokens = (await reader.until_finished(1))[key(0)]
        report = await reader.poll(0.0)
        assert report.stats.generated_tokens_total == len(tokens) == 20
        await replica.submit(1, [ask(1, version, tokens=100)])
        with pytest.raises(Refused, match="holds 1 requests"):
            await replica.profile(1, LIMITS)
    finally:
        await replica.close()
