"""Layouts of one replica: which engines are built, kept and let go; and engines over rank processes, on both kinds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from rljob_runtime.protocols import EngineStats, GenerateRequest, Refused, WrongVersion
from rljob_runtime.protocols.trajectory import PromptKey, Sampling, TrajectoryKey
from rljob_runtime.rollout.engine_cache import EngineCache, is_short_of_memory
from rljob_runtime.rollout.engines.base import Engine, EngineRequest, EngineSettings, StepOutput
from rljob_runtime.rollout.engines.factory import make_engine
from rljob_runtime.rollout.engines.multi_process import PEERS, MultiProcessEngine, RankMismatch
from rljob_runtime.rollout.engines.rank_processes import ForkServer, RankDied
from rljob_runtime.rollout.engines.weights import VersionUnavailable
from rljob_runtime.rollout.replica import RolloutReplica
from tests.support.paths import ROOT
from tests.support.rollout.engines import EOS, Generated, Publisher, assert_trainer_logprobs, prompts, run

SHARED_MEMORY = Path("/dev/shm")


class FakeEngine:
    """Counts what is done to it."""

    def __init__(self) -> None:
        self.weight_version: int | None = None
        self.asleep = self.closed = self.broken = False
        self.generated = 0
        self.held: list[str] = []

    busy = False

    def check(self, request: EngineRequest) -> None: ...

    def add(self, request: EngineRequest) -> None:
        self.held.append(request.id)

    def step(self) -> list[StepOutput]:
        return []

    def abort(self, ids: list[str]) -> None:
        self.held = [id for id in self.held if id not in ids]

    def load(self, version: int) -> None:
        assert not self.asleep
        self.weight_version = version
        self.generated += 1

    def sleep(self) -> None:
        self.asleep, self.weight_version = True, None

    def wake(self) -> None:
        if self.broken:
            raise RuntimeError("cannot wake")
        self.asleep = False

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0.5, 0, self.generated, 0, 0, 0, kv_tokens=1000, max_running=8, square_tokens=1e-5)

    def close(self) -> None:
        self.closed = True


class Workshop:
    """Builds fake engines and remembers them."""

    def __init__(self) -> None:
        self.built: list[tuple[int, FakeEngine]] = []
        self.refused: set[int] = set()
        self.room: int | None = None
        """Engines that find memory; None for any number."""

    def __call__(self, size: int, devices: object = ()) -> FakeEngine:
        if size in self.refused:
            raise ValueError(f"no engine of {size}")
        if self.room is not None and len(self.open) >= self.room:
            raise MemoryError(f"no room for {size}")
        self.built.append((size, FakeEngine()))
        return self.built[-1][1]

    @property
    def open(self) -> list[int]:
        return [size for size, engine in self.built if not engine.closed]


@given(st.lists(st.sampled_from([1, 2, 4, 8, None]), max_size=16), st.sampled_from([2, 3, None]))
def test_only_the_least_recently_used_engine_goes_when_room_is_short(
    sizes: list[int | None], places: int | None
) -> None:
    """None: no engine is in use. In any order: one engine is awake, without weights at first, and totals only grow."""
    workshop = Workshop()
    workshop.room = places
    cache = EngineCache(workshop)
    expected: list[int] = []
    total = 0
    for size in sizes:
        before = cache.tensor_parallel
        if size is None:
            cache.sleep()
            assert cache.weight_version is None
        else:
            cache.switch(size)
            if size != before:
                assert cache.weight_version is None
            cache.load(7)
            expected = [*(other for other in expected if other != size), size][-(places or 4) :]
        assert sorted(workshop.open) == sorted(expected)
        awake = [made for made, engine in workshop.built if not engine.closed and not engine.asleep]
        assert awake == ([] if cache.tensor_parallel is None else [cache.tensor_parallel])
        room = (0, 0) if cache.tensor_parallel is None else (1000, 8)
        assert (cache.stats().kv_tokens, cache.stats().max_running) == room, "of the engine in use alone"
        assert cache.stats().generated_tokens_total >= total
        total = cache.stats().generated_tokens_total
    assert cache.stats().layouts_built_total == len(workshop.built)
    assert total == len([size for size in sizes if size is not None])
    cache.close()
    assert workshop.open == []


def test_an_engine_that_does_not_start_leaves_the_one_before_to_go_back_to() -> None:
    workshop = Workshop()
    cache = EngineCache(workshop)
    cache.switch(1)
    cache.switch(2)
    workshop.refused.add(4)
    with pytest.raises(ValueError, match="no engine of 4"):
        cache.switch(4)
    assert cache.tensor_parallel is None
    cache.switch(2)
    assert [size for size, _ in workshop.built] == [1, 2]
    assert cache.stats().layout_switches_total == 3


def test_a_job_of_four_sizes_rebuilds_nothing() -> None:
    workshop = Workshop()
    cache = EngineCache(workshop)
    for size in (1, 4, 8, 2, 1, 8, 4, 2, 1):
        cache.switch(size)
    assert [size for size, _ in workshop.built] == [1, 4, 8, 2]
    assert (cache.stats().layouts_built_total, cache.stats().layout_switches_total) == (4, 9)
    assert cache.stats().square_tokens == 1e-5, "a property of the model, whatever engines there are"


def test_memory_for_one_engine_only_is_refused_and_the_last_one_stays() -> None:
    workshop = Workshop()
    cache = EngineCache(workshop)
    for size in (1, 4, 2):
        cache.switch(size)
    workshop.room = 1
    with pytest.raises(MemoryError, match="no room for 8"):
        cache.switch(8)
    assert workshop.open == [2]
    cache.switch(2)
    assert [size for size, _ in workshop.built] == [1, 4, 2]


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (ValueError("Free memory on device (3.1/80.0 GiB) on startup is less than desired"), True),
        (ValueError("the heads do not split"), False),
        (RuntimeError("rank 1 of 2 has ended"), False),
    ],
)
def test_which_errors_mean_that_memory_is_short(error: Exception, short: bool) -> None:
    assert is_short_of_memory(error) is short


def test_an_engine_that_does_not_wake_is_closed_and_built_again() -> None:
    workshop = Workshop()
    cache = EngineCache(workshop)
    cache.switch(1)
    cache.switch(2)
    first = workshop.built[0][1]
    first.broken = True
    cache.switch(1)
    assert first.closed
    assert [size for size, _ in workshop.built] == [1, 2, 1]


def ask(prompt: int, version: int, attempt: int = 1, tokens: int = 24) -> GenerateRequest:
    key = TrajectoryKey(PromptKey(0, prompt), 0)
    return GenerateRequest(
        key, attempt, prompts(64)[prompt], Sampling(tokens, temperature=0.0, ignore_eos=True), version
    )


async def test_a_change_of_layout_keeps_the_boot_and_drops_requests_and_weights() -> None:
    workshop = Workshop()
    replica = RolloutReplica("r0", workshop, frozenset())
    await replica.switch_layout(1, 1)
    await replica.load(1, 5)
    boot = (await replica.poll(1, 0, 0)).boot
    await replica.submit(1, [ask(0, 5)])
    await replica.switch_layout(1, 1)
    assert workshop.built[0][1].held, "a layout that is in force is left alone"
    await replica.release_accelerators(1, 2)
    assert workshop.built[0][1].held == []
    with pytest.raises(Refused, match="no engine is in use; switch to a layout first"):
        await replica.load(1, 5)
    await replica.switch_layout(1, 2)
    with pytest.raises(WrongVersion, match="holds None"):
        await replica.submit(1, [ask(1, 5)])
    await replica.load(1, 6)
    await replica.submit(1, [ask(1, 6)])
    report = await replica.poll(1, 0, 0)
    assert report.boot == boot
    assert (report.stats.layouts_built_total, report.stats.layout_switches_total) == (2, 2)
    await replica.close()


async def test_a_layout_without_an_engine_is_refused_with_the_cause() -> None:
    workshop = Workshop()
    workshop.refused.add(2)
    replica = RolloutReplica("r0", workshop, frozenset())
    await replica.switch_layout(1, 1)
    with pytest.raises(Refused, match="r0: no engine of tensor parallel size 2: no engine of 2"):
        await replica.switch_layout(1, 2)
    await replica.switch_layout(1, 1)
    await replica.load(1, 1)
    assert len(workshop.built) == 1
    await replica.close()


# --- rank processes ---


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def soon(condition: Callable[[], bool]) -> bool:
    """Whether it comes to hold."""
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


def ended(*pids: int) -> bool:
    """Whether all of them end soon."""
    return soon(lambda: not any(alive(pid) for pid in pids))


def shared_memory() -> set[str]:
    """What rank processes may leave behind."""
    return {path.name for path in SHARED_MEMORY.iterdir() if path.name.startswith(("rljob-ranks", "psm_"))}


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    fork_server = ForkServer(PEERS["Reference"])
    yield fork_server
    fork_server.close()


@pytest.fixture
def pair(
    fork_server: ForkServer, settings: EngineSettings, publisher: Publisher, model: LlamaForCausalLM
) -> Iterator[MultiProcessEngine]:
    """Two ranks of the reference engine, with weights."""
    engine = MultiProcessEngine(fork_server, replace(settings, tensor_parallel=2))
    engine.load(publisher.publish(model))
    yield engine
    engine.close()


def greedy(count: int, tokens: int = 8) -> list[EngineRequest]:
    return [EngineRequest(f"g{i}", p, tokens, temperature=0.0) for i, p in enumerate(prompts(count))]


def test_ranks_generate_what_one_process_does(
    pair: MultiProcessEngine, engines: Callable[..., Engine], publisher: Publisher
) -> None:
    alone = engines("Reference")
    alone.load(publisher.version)
    drawn = [replace(request, temperature=1.0, seed=index) for index, request in enumerate(greedy(4))]
    expected, got = run(alone, drawn), run(pair, drawn)
    assert {id: g.tokens for id, g in got.items()} == {id: g.tokens for id, g in expected.items()}
    assert pair.stats().generated_tokens_total == 4 * 8
    assert not pair.busy


def test_requests_without_a_seed_get_one_for_all_ranks(pair: MultiProcessEngine) -> None:
    got = run(pair, [replace(request, temperature=1.0) for request in greedy(4)])
    assert {len(g.tokens) for g in got.values()} == {8}


def test_a_version_that_the_relay_lacks_changes_nothing_in_any_rank(
    pair: MultiProcessEngine, publisher: Publisher
) -> None:
    held = publisher.version
    with pytest.raises(VersionUnavailable, match=f"version {held + 1} is requested, the relay holds {held}"):
        pair.load(held + 1)
    assert pair.weight_version == held
    assert run(pair, greedy(1))["g0"].tokens
    pair.sleep()
    assert pair.weight_version is None


def test_ranks_that_make_different_tokens_end_the_engine(pair: MultiProcessEngine) -> None:
    pair.add(greedy(1)[0])
    other = replace(greedy(2)[1], id="g0")
    pair._ranks.connections[1].send(("add", (replace(other, token_ids=other.token_ids[:3]),)))
    pair._ranks.connections[1].recv()
    with pytest.raises(RankMismatch, match="the 2 ranks made different tokens"):
        run(pair, [])


def test_a_terminated_rank_is_noticed_and_ends_the_engine(
    pair: MultiProcessEngine,
) -> None:
    pair.add(greedy(1)[0])
    os.kill(pair._ranks.pids[1], signal.SIGTERM)
    assert ended(pair._ranks.pids[1])
    with pytest.raises(RankDied, match=rf"rank 1 of 2 \(process {pair._ranks.pids[1]}\) has ended"):
        run(pair, [])
    pair.close()
    assert ended(*pair._ranks.pids)


def test_an_error_of_one_rank_is_told_though_the_other_waits_for_ever(pair: MultiProcessEngine) -> None:
    """As in a collective to which one rank never comes. The engine has ended then: a late answer is dropped."""
    pair._ranks.grace = 0.2
    held, pids = pair.weight_version or 0, pair._ranks.pids
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(VersionUnavailable, match=f"version {held + 1} is requested"):
        pair.load(held + 1)
    assert pair.weight_version is None
    assert ended(pids[1])
    with pytest.raises(RankDied, match=rf"rank 1 of 2 \(process {pids[1]}\) has ended"):
        pair.add(greedy(1)[0])
    pair.close()
    assert ended(*pids)


def test_an_error_is_not_told_before_the_others_had_time_to_answer(pair: MultiProcessEngine) -> None:
    """A rank that is only slow lives on."""
    held, pids = pair.weight_version or 0, pair._ranks.pids
    os.kill(pids[1], signal.SIGSTOP)
    timer = threading.Timer(0.3, os.kill, (pids[1], signal.SIGCONT))
    timer.start()
    with pytest.raises(VersionUnavailable):
        pair.load(held + 1)
    timer.join()
    assert pair.weight_version == held
    assert run(pair, greedy(1))["g0"].tokens


def test_the_end_of_a_rank_is_told_before_the_errors_that_it_causes(pair: MultiProcessEngine) -> None:
    """Who waits for a rank in a collective raises when it ends, and its error may arrive first."""
    held, pids = pair.weight_version or 0, pair._ranks.pids
    os.kill(pids[1], signal.SIGSTOP)
    timer = threading.Timer(0.3, os.kill, (pids[1], signal.SIGKILL))
    timer.start()
    with pytest.raises(RankDied, match=rf"rank 1 of 2 \(process {pids[1]}\) has ended") as told:
        pair.load(held + 1)
    timer.join()
    assert isinstance(told.value.__cause__, VersionUnavailable)
    pair.close()


def test_an_engine_that_cannot_be_built_leaves_no_process(fork_server: ForkServer, settings: EngineSettings) -> None:
    before = _processes_of(fork_server)
    with pytest.raises(Exception, match="nowhere"):
        MultiProcessEngine(fork_server, replace(settings, folder=Path("/nowhere"), tensor_parallel=2))
    assert ended(*(_processes_of(fork_server) - before))


def _processes_of(fork_server: ForkServer) -> set[int]:
    """Of its session: the fork server and its ranks."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(folder.name)) == fork_server._process.pid:
                found.add(int(folder.name))
    return found


ORPHAN = """
import sys, time
from rljob_runtime.rollout.engines.rank_processes import ForkServer
fork_server = ForkServer("tests.support.rollout.idle_rank:IdleRank")
ways = [fork_server.fork([]) for _ in range(2)]
print(fork_server._process.pid, *(way.recv() for way in ways), flush=True)
time.sleep(600)
"""


def test_all_ranks_end_with_the_replicas_process() -> None:
    """However it ends."""
    numbers = (signal.SIGTERM, signal.SIGKILL)
    parents = [
        subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in numbers
    ]
    for parent, number in zip(parents, numbers, strict=True):
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert all(alive(pid) for pid in pids)
        parent.send_signal(number)
        parent.wait()
        assert ended(*pids)


@pytest.mark.parametrize("size", [1, 2])
def test_the_reference_engines_tokens_are_the_same_in_every_layout(
    size: int, settings: EngineSettings, publisher: Publisher, model: LlamaForCausalLM, engines: Callable[..., Engine]
) -> None:
    publisher.publish(model)
    usual, engine = engines("Reference"), make_engine("Reference", replace(settings, tensor_parallel=size))
    for one in (usual, engine):
        one.load(publisher.version)
    expected, got = run(usual, greedy(4)), run(engine, greedy(4))
    assert {id: g.tokens for id, g in got.items()} == {id: g.tokens for id, g in expected.items()}


@pytest.mark.engine
def test_vllm_in_both_layouts_generates_the_same_and_is_changed_to_and_fro(
    settings: EngineSettings, publisher: Publisher, model: LlamaForCausalLM, other_model: LlamaForCausalLM
) -> None:
    """1 → 2 → update → 1 under the replica's protocol: 64 greedy responses are equal in both layouts, logprobs are the
    trainer's, each layout is built once, and nothing is left behind."""
    left = shared_memory()
    fork_server = ForkServer(PEERS["VLLM"])
    pids: set[int] = set()

    def make(size: int, devices: object) -> MultiProcessEngine:
        engine = MultiProcessEngine(fork_server, replace(settings, tensor_parallel=size))
        pids.update(engine._ranks.pids)
        return engine

    async def generated(replica: RolloutReplica, count: int) -> dict[int, Generated]:
        version, cursor = publisher.version, (await replica.poll(1, 0, 0)).cursor
        await replica.submit(1, [ask(i, version, attempt=cursor + 1) for i in range(count)])
        got: dict[int, Generated] = {}
        while sum(g.finish is not None for g in got.values()) < count:
            report = await replica.poll(1, cursor, 10.0)
            cursor = report.cursor
            for delta in report.deltas:
                assert delta.weight_version == version
                one = got.setdefault(delta.key.prompt.index, Generated([], []))
                one.tokens += delta.token_ids
                one.logprobs += delta.logprobs
                one.finish = delta.finish_reason
        return got

    async def program() -> None:
        replica = RolloutReplica("r0", make, frozenset({EOS}), fork_server.close)
        boots, runs = set(), []
        for trained, size, count in ((model, 1, 64), (model, 2, 64), (other_model, 2, 8), (other_model, 1, 8)):
            if not runs or trained is other_model:
                publisher.publish(trained)
            await replica.release_accelerators(1, size)
            await replica.switch_layout(1, size)
            await replica.load(1, publisher.version)
            runs.append(await generated(replica, count))
            boots.add((await replica.poll(1, 0, 0)).boot)
            for index, one in list(runs[-1].items())[:8]:
                assert_trainer_logprobs(trained, prompts(64)[index], one, 0.0)
        for narrow, wide in ((runs[0], runs[1]), (runs[3], runs[2])):
            assert [wide[i].tokens for i in narrow] == [narrow[i].tokens for i in narrow]
            assert (
                max(abs(a - b) for i in narrow for a, b in zip(narrow[i].logprobs, wide[i].logprobs, strict=True))
                < 2e-6
            )
        stats = (await replica.poll(1, 0, 0)).stats
        assert len(boots) == 1
        assert (stats.layouts_built_total, stats.layout_switches_total) == (2, 3)
        assert stats.prefix_resets_total == stats.weight_loads_total == 4
        await replica.close()

    asyncio.run(program())
    assert len(pids) == 3
    assert ended(*pids, fork_server._process.pid)
    assert soon(lambda: shared_memory() <= left), "what others make meanwhile goes again"
