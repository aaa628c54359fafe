"""The replica: versions, terms, leases, repeated and late commands, its end. Over both engines where they matter."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent import futures
from dataclasses import replace
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from rljob_runtime.protocols import GenerateRequest, PeerGone, Refused, StaleTerm, WrongVersion
from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.rollout.engines.base import Engine, EngineRequest, EngineSettings, StepOutput
from rljob_runtime.rollout.engines.factory import make_engine
from rljob_runtime.rollout.engines.weights import VersionUnavailable
from rljob_runtime.rollout.replica import RolloutReplica
from tests.support.rollout.engines import EOS, Generated, Publisher, assert_trainer_logprobs, prompts, run
from tests.support.rollout.reader import PATIENCE, Reader, ask, key
from tests.support.rollout.shared_engine import shared

# The rows of vLLM have pytest.mark.engine, from the fixture `kind`.


class Letters:
    """A text with a letter for each token."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(ord("Ā") + token) for token in token_ids)


@pytest.fixture
async def replica(
    kind: str, engines: Callable[..., Engine], publisher: Publisher, model: LlamaForCausalLM
) -> AsyncIterator[RolloutReplica]:
    """A replica with the weights of `model` under the publisher's newest version."""
    publisher.publish(model)
    replica = RolloutReplica("r0", lambda size, devices: shared(engines(kind)), frozenset({EOS}), open_text=Letters)
    await replica.switch_layout(1, 1)
    await replica.load(1, publisher.version)
    yield replica
    await replica.close()


@pytest.fixture
async def small(
    settings: EngineSettings, publisher: Publisher, model: LlamaForCausalLM
) -> AsyncIterator[RolloutReplica]:
    """The same over the reference engine only: for what no engine decides."""
    publisher.publish(model)
    replica = RolloutReplica("r0", lambda size, devices: make_engine("Reference", settings), frozenset({EOS}))
    await replica.switch_layout(1, 1)
    await replica.load(1, publisher.version)
    yield replica
    await replica.close()


async def test_tokens_logprobs_and_version_of_what_was_asked(
    replica: RolloutReplica, publisher: Publisher, model: LlamaForCausalLM, other_model: LlamaForCausalLM
) -> None:
    """Two rounds with an update between them, as in training: every delta carries the version that made it."""
    for trained in (model, other_model):
        version = publisher.publish(trained)
        await replica.load(1, version)
        reader = Reader(replica, cursor=(await replica.poll(1, 0, 0)).cursor)
        await replica.submit(1, [ask(i, version, attempt=version) for i in range(8)])
        tokens = await reader.until_finished(8)
        assert {d.weight_version for d in reader.deltas} == {version}
        for i in range(8):
            assert len(tokens[key(i)]) == 20
            logprobs = [p for d in reader.deltas if d.key == key(i) for p in d.logprobs]
            assert_trainer_logprobs(trained, prompts(16)[i], Generated(tokens[key(i)], logprobs), 0.0)
    report = await replica.poll(1, 0, 0)
    assert report.weight_version == publisher.version
    assert report.stats.prefix_resets_total == report.stats.weight_loads_total == 3
    assert report.stats.generated_tokens_total == 2 * 8 * 20


async def test_every_step_is_counted_with_what_it_computed(replica: RolloutReplica, publisher: Publisher) -> None:
    reader, began = Reader(replica, cursor=(await replica.poll(1, 0, 0)).cursor), time.perf_counter()
    await replica.submit(1, [ask(i, publisher.version) for i in range(8)])
    await reader.until_finished(8)
    passed, stats = time.perf_counter() - began, (await replica.poll(1, 0, 0)).stats
    decode, prefill = stats.decode, stats.prefill
    assert decode.sequences + prefill.sequences == stats.generated_tokens_total == 8 * 20
    assert (decode.prompt_tokens, prefill.prompt_tokens) == (0, sum(map(len, prompts(16)[:8])))
    assert 19 <= decode.steps + prefill.steps <= 20 * 8
    assert decode.steps > prefill.steps > 0
    assert 0 < decode.seconds + prefill.seconds < passed


async def test_a_response_ends_with_the_token_that_completes_a_stop_string(
    replica: RolloutReplica, publisher: Publisher, model: LlamaForCausalLM
) -> None:
    """Also in the middle of its string, on a replica that did not generate the beginning. Others are not touched."""
    version, reader = publisher.version, Reader(replica)
    await replica.submit(1, [ask(0, version), ask(1, version)])
    whole = await reader.until_finished(2)
    tokens = whole[key(0)]
    string = Letters().decode(tokens[5:8])
    end = next(n for n in range(len(tokens) + 1) if string in Letters().decode(tokens[:n]))
    assert end < len(tokens)
    await replica.submit(1, [ask(0, version, attempt=2, stop_strings=("?", string)), ask(1, version, attempt=2)])
    stopped = Reader(replica, cursor=reader.cursor)
    got = await stopped.until_finished(2)
    assert got == {key(0): tokens[:end], key(1): whole[key(1)]}
    mine = [delta for delta in stopped.deltas if delta.key == key(0)]
    assert mine[-1].finish_reason is FinishReason.STOP
    logprobs = [p for delta in mine for p in delta.logprobs]
    assert_trainer_logprobs(model, prompts(16)[0], Generated(got[key(0)], logprobs), 0.0)
    moved = ask(0, version, attempt=3, stop_strings=(string,))
    await replica.submit(1, [replace(moved, prefix_token_ids=tuple(tokens[: end - 1]))])
    rest = Reader(replica, cursor=stopped.cursor)
    await rest.until_finished(1)
    assert [(d.offset, d.token_ids, d.finish_reason) for d in rest.deltas] == [
        (end - 1, (tokens[end - 1],), FinishReason.STOP)
    ]
    assert (await replica.poll(1, rest.cursor, 0)).stats.running == 0, "the engine was told"


async def test_a_replica_without_a_tokenizer_refuses_stop_strings(small: RolloutReplica, publisher: Publisher) -> None:
    with pytest.raises(Refused, match="the replica has no tokenizer, so it takes no stop strings"):
        await small.submit(1, [ask(0, publisher.version, stop_strings=("a",))])
    await small.submit(1, [ask(0, publisher.version)])
    assert len((await Reader(small).until_finished(1))[key(0)]) == 20


async def test_a_report_holds_the_tokens_of_a_step_and_its_figures_or_neither(
    replica: RolloutReplica, publisher: Publisher
) -> None:
    reader = Reader(replica)
    await replica.submit(1, [ask(i, publisher.version) for i in range(4)])
    told = []
    async with asyncio.timeout(PATIENCE):
        while sum(d.finish_reason is not None for d in reader.deltas) < 4:
            report = await reader.poll()
            told.append(report.stats.generated_tokens_total)
            assert sum(len(d.token_ids) for d in reader.deltas) == told[-1]
    assert report.stats.running == 0
    assert told[-1] == 4 * 20


async def test_a_response_ends_at_the_end_of_sequence_unless_told_otherwise(
    replica: RolloutReplica, publisher: Publisher
) -> None:
    sampling = {"temperature": 1.5, "tokens": 150}
    await replica.submit(
        1,
        [ask(i, publisher.version, seed=i, ignore_eos=i % 2 == 0, **sampling) for i in range(16)],  # type: ignore[arg-type]
    )
    reader = Reader(replica)
    tokens = await reader.until_finished(16)
    reasons = {d.key: d.finish_reason for d in reader.deltas if d.finish_reason}
    assert any(reasons[key(i)] is FinishReason.STOP for i in range(1, 16, 2))
    for i in range(16):
        stopped = i % 2 == 1 and EOS in tokens[key(i)]
        assert reasons[key(i)] is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert len(tokens[key(i)]) == (tokens[key(i)].index(EOS) + 1 if stopped else 150)


async def test_a_continuation_starts_at_its_offset_and_keeps_the_bound(
    replica: RolloutReplica, publisher: Publisher
) -> None:
    version = publisher.version
    await replica.submit(1, [ask(0, version)])
    whole = (await Reader(replica).until_finished(1))[key(0)]
    cursor = (await replica.poll(1, 0, 0)).cursor
    moved = ask(0, version, attempt=2)
    await replica.submit(1, [GenerateRequest(**{**vars(moved), "prefix_token_ids": tuple(whole[:12])})])
    reader = Reader(replica, cursor=cursor)
    assert (await reader.until_finished(1))[key(0)] == whole[12:]
    assert reader.deltas[0].offset == 12


async def test_an_unacknowledged_delta_comes_again(small: RolloutReplica, publisher: Publisher) -> None:
    await small.submit(1, [ask(0, publisher.version)])
    report = await small.poll(1, 0, 1.0)
    async with asyncio.timeout(PATIENCE):
        while not any(delta.finish_reason for delta in report.deltas):
            report = await small.poll(1, 0, 1.0)
    assert (await small.poll(1, 0, 0)).deltas == report.deltas
    assert [delta.offset for delta in report.deltas] == sorted({delta.offset for delta in report.deltas})
    assert sum(len(d.token_ids) for d in report.deltas) == 20
    assert (await small.poll(1, report.cursor, 0)).deltas == ()
    assert (await small.poll(1, 0, 0)).deltas == (), "acknowledged deltas came back"


async def test_repeated_and_late_attempts_generate_nothing(small: RolloutReplica, publisher: Publisher) -> None:
    version, reader = publisher.version, Reader(small)
    await small.submit(1, [ask(0, version, attempt=2)])
    await small.submit(1, [ask(0, version, attempt=2), ask(0, version, attempt=1)])
    await reader.until_finished(1)
    await small.submit(1, [ask(0, version, attempt=2), ask(0, version, attempt=1)])
    await small.submit(1, [ask(1, version)])
    tokens = await reader.until_finished(2)
    assert len(tokens[key(0)]) == 20
    assert {(d.key, d.attempt) for d in reader.deltas} == {(key(0), 2), (key(1), 1)}
    assert (await reader.poll(0)).stats.generated_tokens_total == 40


async def test_a_higher_attempt_replaces_the_one_that_runs(gated: Gated, publisher: Publisher) -> None:
    replica = gated.replica
    await replica.load(1, 1)
    await replica.submit(1, [ask(0, 1, attempt=1)])
    gated.step()
    await replica.submit(1, [ask(0, 1, attempt=2)])
    gated.step()
    report = await replica.poll(1, 0, 0)
    assert [(d.attempt, d.offset) for d in report.deltas] == [(1, 0), (2, 0)]
    assert report.stats.running == 1


async def test_an_attempt_replaced_within_one_submit_never_starts(gated: Gated) -> None:
    await gated.replica.load(1, 1)
    await gated.replica.submit(1, [ask(0, 1, attempt=1), ask(0, 1, attempt=3)])
    gated.step()
    assert [d.attempt for d in (await gated.replica.poll(1, 0, 0)).deltas] == [3]


async def test_no_delta_is_made_after_an_abort(gated: Gated) -> None:
    replica = gated.replica
    await replica.load(1, 1)
    await replica.submit(1, [ask(0, 1), ask(1, 1)])
    gated.step()
    await replica.abort(1, {key(0): 1, key(7): 1})
    cursor = (await replica.poll(1, 0, 0)).cursor
    gated.step()
    assert {d.key for d in (await replica.poll(1, cursor, 0)).deltas} == {key(1)}
    await replica.submit(1, [ask(0, 1)])
    gated.step()
    assert {d.key for d in (await replica.poll(1, cursor, 0)).deltas} == {key(1)}, "an aborted attempt came back"


async def test_late_aborts_and_submits_have_no_effect(gated: Gated) -> None:
    replica = gated.replica
    await replica.load(1, 1)
    await replica.submit(1, [ask(0, 1, attempt=2), ask(1, 1, attempt=1)])
    await replica.abort(1, {key(0): 1, key(1): 1, key(2): 4})
    await replica.submit(1, [ask(2, 1, attempt=4)])
    gated.step()
    assert {(d.key, d.attempt) for d in (await replica.poll(1, 0, 0)).deltas} == {(key(0), 2)}


async def test_another_version_is_refused_whole(small: RolloutReplica, publisher: Publisher) -> None:
    version = publisher.version
    with pytest.raises(WrongVersion, match=f"{version + 1} is requested, replica r0 holds {version}"):
        await small.submit(1, [ask(0, version), ask(1, version + 1)])
    stats = (await small.poll(1, 0, 0)).stats
    assert stats.running == stats.waiting == stats.prompt_tokens_total == 0


async def test_nothing_is_generated_before_the_first_load(settings: EngineSettings) -> None:
    replica = RolloutReplica("r0", lambda size, devices: make_engine("Reference", settings), frozenset())
    await replica.switch_layout(1, 1)
    with pytest.raises(WrongVersion, match="holds None"):
        await replica.submit(1, [ask(0, 0)])
    assert (await replica.poll(1, 0, 0)).weight_version is None
    await replica.close()


async def test_a_load_is_refused_while_requests_are_held(gated: Gated) -> None:
    await gated.replica.load(1, 1)
    await gated.replica.submit(1, [ask(0, 1)])
    with pytest.raises(Refused, match="holds 1 requests; abort them"):
        await gated.replica.load(1, 2)
    await gated.replica.abort(1, {key(0): 1})
    await gated.replica.load(1, 2)
    assert (await gated.replica.poll(1, 0, 0)).weight_version == 2


async def test_a_load_that_the_relay_cannot_serve_keeps_the_old_version(
    small: RolloutReplica, publisher: Publisher
) -> None:
    version = publisher.version
    with pytest.raises(WrongVersion, match=f"the relay holds {version}"):
        await small.load(1, version + 1)
    await small.submit(1, [ask(0, version)])
    await Reader(small).until_finished(1)


async def test_a_load_takes_the_newer_version_that_is_there_by_now(
    small: RolloutReplica, publisher: Publisher, model: LlamaForCausalLM
) -> None:
    held = publisher.version
    newest = [publisher.publish(model) for _ in range(3)][-1]
    assert await small.load(1, held + 1) == newest
    assert (await small.poll(1, 0, 0)).weight_version == newest
    assert await small.load(1, newest) == newest


async def test_a_load_gives_up_where_the_relay_is_always_newer(gated: Gated) -> None:
    await gated.replica.load(1, 1)
    gated.engine.overtaken = True
    with pytest.raises(WrongVersion, match="weight version 10 is requested"):
        await gated.replica.load(1, 2)


async def test_a_repeated_load_loads_once(small: RolloutReplica, publisher: Publisher) -> None:
    await small.load(1, publisher.version)
    assert (await small.poll(1, 0, 0)).stats.weight_loads_total == 1


async def test_an_older_term_is_refused_by_every_command(small: RolloutReplica, publisher: Publisher) -> None:
    await small.poll(5, 0, 0)
    for command in (
        small.submit(4, [ask(0, publisher.version)]),
        small.abort(4, {}),
        small.poll(4, 0, 0),
        small.load(4, publisher.version),
        small.release_accelerators(4, 2),
        small.switch_layout(4, 2),
    ):
        with pytest.raises(StaleTerm, match="term 4 is over: replica r0 follows term 5"):
            await command
    await small.submit(5, [])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tokens": 500}, "exceed the engine's context of 256"),
        ({"tokens": 0}, "it must leave at least 1"),
    ],
)
async def test_an_impossible_request_is_refused_with_its_key_and_reason(
    small: RolloutReplica, publisher: Publisher, bad: dict[str, int], message: str
) -> None:
    with pytest.raises(Refused, match=rf"0\.3\.0: .*{message}"):
        await small.submit(1, [ask(2, publisher.version), ask(3, publisher.version, **bad)])
    stats = (await small.poll(1, 0, 0)).stats
    assert stats.running == stats.waiting == stats.prompt_tokens_total == 0


async def test_a_poll_waits_and_gives_up(small: RolloutReplica) -> None:
    started = asyncio.get_running_loop().time()
    assert (await small.poll(1, 0, 0.2)).deltas == ()
    assert asyncio.get_running_loop().time() - started >= 0.19


async def test_a_caller_that_gives_up_does_not_undo_its_command(gated: Gated) -> None:
    await gated.replica.load(1, 1)
    gated.hold()
    command = asyncio.create_task(gated.replica.submit(1, [ask(0, 1)]))
    await asyncio.sleep(0.05)
    command.cancel()
    gated.release()
    await gated.replica.ready()
    assert (await gated.replica.poll(1, 0, 0)).stats.running == 1


async def test_every_caller_receives_the_end(gated: Gated) -> None:
    await gated.replica.load(1, 1)
    waiting = asyncio.create_task(gated.replica.poll(1, 0, PATIENCE))
    await asyncio.sleep(0.05)
    await gated.replica.close()
    with pytest.raises(PeerGone, match="replica r0: the engine was closed"):
        await waiting
    with pytest.raises(PeerGone):
        await gated.replica.submit(1, [])
    assert gated.engine.closed


async def test_a_failing_step_ends_the_replica_with_its_cause(gated: Gated) -> None:
    await gated.replica.load(1, 1)
    gated.engine.fail = ZeroDivisionError("a broken kernel")
    await gated.replica.submit(1, [ask(0, 1)])
    gated.step()
    with pytest.raises(PeerGone, match="a broken kernel"):
        await gated.replica.poll(1, 0, PATIENCE)


async def test_an_engine_that_cannot_start_is_refused_with_its_cause(settings: EngineSettings) -> None:
    replica = RolloutReplica("r0", lambda size, devices: make_engine("Nonsense", settings), frozenset())
    with pytest.raises(Refused, match="'Nonsense' is not one of VLLM, Reference"):
        await replica.switch_layout(1, 1)
    await replica.close()


class ScriptedEngine:
    """Gives every request one token a step, when the test says so."""

    def __init__(self) -> None:
        self.weight_version: int | None = None
        self.overtaken = False
        self.requests: list[str] = []
        self.turns = threading.Semaphore(0)
        self.stepped = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.fail: Exception | None = None
        self.closed = False

    @property
    def busy(self) -> bool:
        # Only a granted turn is work: the thread goes back to its commands in between.
        self.gate.wait(PATIENCE)
        return bool(self.requests) and self.turns.acquire(blocking=False) and not self.turns.release()

    def check(self, request: EngineRequest) -> None: ...

    def add(self, request: EngineRequest) -> None:
        self.requests.append(request.id)

    def step(self) -> list[StepOutput]:
        self.turns.acquire()
        self.stepped.release()
        if self.fail:
            raise self.fail
        return [StepOutput(id, (5,), (-1.0,)) for id in self.requests]

    def abort(self, ids: list[str]) -> None:
        self.requests = [id for id in self.requests if id not in ids]

    def load(self, version: int) -> None:
        if self.overtaken:
            raise VersionUnavailable(version, version + 1)
        self.weight_version = version

    def sleep(self) -> None:
        self.weight_version = None

    def wake(self) -> None: ...

    def stats(self) -> object:
        from rljob_runtime.protocols import EngineStats

        return EngineStats(len(self.requests), 0, 0.0, 0, 0, 0, 0, 0)

    def close(self) -> None:
        self.closed = True


class Gated:
    """A replica over a `ScriptedEngine`, stepped by the test."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.replica = RolloutReplica("r0", self._make, frozenset())

    def _make(self, tensor_parallel: int, devices: object) -> Engine:
        return self.engine  # type: ignore[return-value]

    def step(self) -> None:
        """Let the engine make one step, and wait until its deltas are out."""
        self.engine.turns.release()
        self.replica._engine.call(lambda engine: None).result(PATIENCE)  # Wakes the thread; it then steps.
        assert self.engine.stepped.acquire(timeout=PATIENCE)
        futures.wait([self.replica._engine.call(lambda engine: None)], PATIENCE)  # Answered after that step.

    def hold(self) -> None:
        self.engine.gate.clear()

    def release(self) -> None:
        self.engine.gate.set()


@pytest.fixture
async def gated() -> AsyncIterator[Gated]:
    gated = Gated()
    await gated.replica.switch_layout(1, 1)
    yield gated
    gated.release()
    await gated.replica.close()


@pytest.mark.parametrize("choice", [{}, {"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.5}], ids=str)
def test_the_replica_generates_what_the_engine_does(
    choice: dict[str, Any],
    settings: EngineSettings,
    publisher: Publisher,
    model: LlamaForCausalLM,
    engines: Callable[..., Engine],
) -> None:
    """The same request through the replica and straight through an engine."""
    version = publisher.publish(model)
    engine = engines("Reference")
    engine.load(version)
    direct = run(engine, [EngineRequest("d", prompts(16)[0], 20, temperature=1.0, seed=3, **choice)])["d"].tokens

    async def through_replica() -> list[int]:
        replica = RolloutReplica("r0", lambda size, devices: make_engine("Reference", settings), frozenset())
        await replica.switch_layout(1, 1)
        await replica.load(1, version)
        await replica.submit(1, [ask(0, version, temperature=1.0, seed=3, **choice)])
        tokens = (await Reader(replica).until_finished(1))[key(0)]
        await replica.close()
        return tokens

    assert asyncio.run(through_replica()) == direct
