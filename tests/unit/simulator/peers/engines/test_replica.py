"""The replica on the engine model: exact tokens at exact times, however often it is polled, and a clock that may stand
still."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.perf_model.engine_records import Request
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.protocols import GenerateRequest, Refused, WrongVersion
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, Sampling, TrajectoryKey
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.process_clock import ProcessClock, loop_time
from rljob_runtime.simulator.core.tokens import phase, text
from rljob_runtime.simulator.peers.engines.engine_kind import EngineKind, steady
from rljob_runtime.simulator.peers.engines.replica import Engines, SimulatedReplica
from rljob_runtime.simulator.peers.host import Host
from rljob_runtime.simulator.peers.relay import Weights

LATENCY = LatencyModel(((1, 0.01), (64, 0.02)), 1e-6, 0.05, 1e-5, 0.0)


def key(sample: int) -> TrajectoryKey:
    return TrajectoryKey(PromptKey(0, 3), sample)


def request(sample: int = 0, attempt: int = 1, prefix: int = 0, most: int = 1000) -> GenerateRequest:
    tokens, _ = text(phase(key(sample), 1), 0, prefix)
    return GenerateRequest(key(sample), attempt, (7,) * 50, Sampling(max_tokens=most), 1, tokens)


def replica(lengths=lambda key, version: 100, kv=10_000, stream=math.inf, pace=None) -> SimulatedReplica:
    kind = EngineKind(LATENCY, kv_tokens=kv, stream_seconds=stream)
    return SimulatedReplica("r", Host(Weights(whole=1), pace or ProcessClock()), Engines(kind, lengths), loaded=1)


async def collect(replica: SimulatedReplica, count: int, wait: float = 50.0) -> dict:
    """Tokens of each response, the reason of its end, and the time of that report."""
    found, cursor = {}, 0
    while sum(reason is not None for _, reason, _ in found.values()) < count:
        report = await replica.poll(1, cursor, wait)
        cursor = report.cursor
        for delta in report.deltas:
            tokens, _, _ = found.get(delta.key, ((), None, None))
            assert delta.offset == len(tokens)
            found[delta.key] = (*tokens, *delta.token_ids), delta.finish_reason, loop_time()
    return found


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.sampled_from([0.05, 0.7, math.inf]), st.booleans())
def test_responses_end_when_the_engine_model_says(lengths, stream, tight):
    """Whatever is streamed, and however often it is polled; preemptions and queueing included."""
    kv = 500 if tight else 100_000
    engine = EngineKind(LATENCY, kv).make(0.0)
    engine.submit(0.0, [Request(n, 50, length) for n, length in enumerate(lengths)])
    expected = {key(finish.id): finish.time for finish in engine.drain()}

    async def program():
        one = replica(lambda key, version: lengths[key.sample], kv, stream)
        await one.submit(1, [request(sample, most=400) for sample in range(len(lengths))])
        return await collect(one, len(lengths), wait=0.33)

    found = virtual_time.run(program())
    assert {one: when for one, (_, _, when) in found.items()} == pytest.approx(expected, abs=1e-5)
    for sample, length in enumerate(lengths):
        assert found[key(sample)][0] == text(phase(key(sample), 1), 0, length)[0]


def test_the_limit_ends_a_response_and_says_so():
    async def program():
        one = replica()
        await one.submit(1, [request(0, most=100), request(1, most=99), request(2)])
        return await collect(one, 3)

    found = virtual_time.run(program())
    reasons = [(len(tokens), reason) for tokens, reason, _ in (found[key(sample)] for sample in range(3))]
    assert reasons == [(100, FinishReason.LENGTH), (99, FinishReason.LENGTH), (100, FinishReason.STOP)]


def test_a_prefix_is_gone_on_from_and_a_whole_one_ends_immediately():
    async def program():
        one = replica()
        await one.submit(1, [request(0, prefix=100), request(1, prefix=98)])
        report = await one.poll(1, 0, 50.0)
        assert [(d.key, d.offset, d.token_ids, d.finish_reason) for d in report.deltas] == [
            (key(0), 100, (), FinishReason.STOP)
        ]
        report = await one.poll(1, report.cursor, 50.0)
        assert [(d.key, d.offset, len(d.token_ids)) for d in report.deltas] == [(key(1), 98, 2)]

    virtual_time.run(program())


def test_an_aborted_response_reports_no_more_and_a_higher_attempt_replaces():
    async def program():
        one = replica()
        await one.submit(1, [request(0), request(1)])
        await one.abort(1, {key(0): 1})
        await one.submit(1, [request(1, attempt=2, prefix=10)])
        await one.submit(1, [request(1, attempt=1)])
        report = await one.poll(1, 0, 50.0)
        assert [(d.key, d.attempt, d.offset) for d in report.deltas] == [(key(1), 2, 10)]
        assert (await one.poll(1, report.cursor, 50.0)).deltas == ()

    virtual_time.run(program())


def test_refusals():
    async def program():
        one = replica(kv=500)
        with pytest.raises(Refused, match="may take 1050 tokens; the KV cache has 500"):
            await one.submit(1, [request()])
        await one.submit(1, [request(most=200)])
        with pytest.raises(Refused, match="still holds 1 request"):
            await one.load(1, 2)
        await one.abort(1, {key(0): 1})
        with pytest.raises(WrongVersion, match="the relay holds version 1, not 2"):
            await one.load(1, 2)

    virtual_time.run(program())


def test_a_replica_that_stands_still_and_runs_slow_is_late_by_just_that():
    async def program(trouble: bool) -> float:
        pace = ProcessClock()
        one = replica(pace=pace)
        await one.submit(1, [request()])
        poll = asyncio.ensure_future(collect(one, 1))
        if trouble:
            await asyncio.sleep(0.3)
            pace.set(0.0)
            await asyncio.sleep(7.0)
            pace.set(0.5)
            await asyncio.sleep(0.4)
            pace.set(1.0)
        return (await poll)[key(0)][2]

    assert virtual_time.run(program(True)) == pytest.approx(virtual_time.run(program(False)) + 7.0 + 0.2, abs=1e-5)


def test_a_skewed_clock_waits_for_longer_than_it_was_asked():
    async def program() -> float:
        pace = ProcessClock()
        pace.timers = 3.0
        await SimulatedReplica("r", Host(Weights(whole=1), pace), Engines(steady(0.01)), loaded=1).poll(1, 0, 0.5)
        return loop_time()

    assert virtual_time.run(program()) == pytest.approx(1.5)


def test_nothing_to_do_takes_no_turns():
    """A long response costs a few turns of the loop, not one a token."""

    async def program() -> int:
        one = replica(lambda key, version: 9000, kv=100_000)
        await one.submit(1, [request(most=10_000)])
        polls = 0
        while not (await one.poll(1, 0, 60.0)).deltas:
            polls += 1
        return polls

    assert virtual_time.run(program()) < 5
