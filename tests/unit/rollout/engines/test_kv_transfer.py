"""Responses go on in another layout with their KV: the same tokens, blocks that moved, and a prefill for all that is
wrong with a file. Over both engines where they matter; the reference engine decides nothing that vLLM does not.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rljob_runtime.coordinator.on_policy.kv_handover import KvHandovers
from rljob_runtime.protocols import GenerateRequest, KvExport, KvRefusal, KvSize, KvStats, ProfileLimits
from rljob_runtime.protocols.trajectory import Lease, PromptKey, Sampling, TrajectoryKey
from rljob_runtime.rollout import kv_exchange
from rljob_runtime.rollout.attempts import engine_id
from rljob_runtime.rollout.engines.base import EngineSettings, SleepableEngine, StepOutput
from rljob_runtime.rollout.engines.factory import make_engine
from rljob_runtime.rollout.engines.multi_process import PEERS, MultiProcessEngine
from rljob_runtime.rollout.engines.rank_processes import ForkServer, RankDied
from rljob_runtime.rollout.kv import kv_file
from rljob_runtime.rollout.kv.copier import KvCopier
from rljob_runtime.rollout.kv.kv_file import KvFileWriter, KvRegions, Mismatch, read_index
from rljob_runtime.rollout.kv_exchange import KvExchange
from rljob_runtime.rollout.replica import RolloutReplica
from rljob_runtime.scheduling.adaptive_tp.kv_drops import KvDrops
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.adaptive_tp.switch_costs import Part, State, SwitchCosts
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch
from rljob_runtime.scheduling.round_plan import Launch
from tests.support.rollout.engines import Generated, Publisher, prompts, tiny_config, tiny_model
from tests.support.rows import slow

# The rows of vLLM have pytest.mark.engine, from the fixture `kind`.
PATIENCE = 300.0
RESPONSES = 8
LENGTH, SOME = 220, 40
"""Tokens of a response, and those that it has when it moves."""
APART = 5e-6
"""Of a logprob in fp32."""
Make = Callable[[int, Sequence[str]], SleepableEngine]


@pytest.fixture(scope="module")
def config() -> LlamaConfig:
    """Two key-value heads, so that two ranks hold one each."""
    return tiny_config(hidden_size=128, num_attention_heads=4, num_key_value_heads=2)


@pytest.fixture(scope="module")
def model(config: LlamaConfig) -> LlamaForCausalLM:
    return tiny_model(3, config)


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory, model: LlamaForCausalLM) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path_factory.mktemp("shm") / "segment")
    publisher.publish(model)
    yield publisher
    publisher.close()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, config: LlamaConfig, publisher: Publisher) -> EngineSettings:
    folder = tmp_path_factory.mktemp("model")
    config.save_pretrained(folder)
    return EngineSettings(
        folder=folder,
        weights=publisher.folder,
        dtype="float32",
        max_model_len=256,
        kv_cache_bytes=16 << 20,
        transfers_kv=True,
    )


@pytest.fixture
def exchange(tmp_path: Path, publisher: Publisher) -> Callable[[], KvExchange]:
    return lambda: KvExchange(tmp_path / "kv", "ns/job", "rollout-0-1", publisher.folder)


class LastingEngine(MultiProcessEngine):
    """Sleeps where others end, for the next test's replica."""

    def close(self) -> None:
        self.sleep()


@pytest.fixture(scope="module")
def vllm(settings: EngineSettings) -> Iterator[Make]:
    """One engine of each size for all tests, because its start takes longest."""
    fork_server, made = ForkServer(PEERS["VLLM"]), dict[int, LastingEngine]()

    def get(size: int, devices: Sequence[str]) -> LastingEngine:
        if size in made:
            made[size].wake()
        else:
            made[size] = LastingEngine(fork_server, replace(settings, tensor_parallel=size))
        return made[size]

    yield get
    fork_server.close()


class Brake:
    """Slows engines down once all responses have so many new tokens.

    A test that wants them half way has the time for it then, also on a busy machine."""

    def __init__(self) -> None:
        self.set(LENGTH)

    def set(self, tokens: int) -> None:
        self._tokens, self._made, self._steps = tokens, Counter[str](), 60

    def step(self, step: Callable[[], list[StepOutput]]) -> list[StepOutput]:
        outputs, made, tokens = step(), self._made, self._tokens
        for one in outputs:
            made[one.id] += len(one.token_ids)
        if tokens < LENGTH and self._steps and sum(count >= tokens for count in made.values()) >= RESPONSES:
            self._steps -= 1
            time.sleep(0.05)
        return outputs


BRAKE = Brake()


def braked(engine: SleepableEngine) -> SleepableEngine:
    """Return the engine, with the brake of this module."""
    step = engine.step
    engine.step = lambda: BRAKE.step(step)  # type: ignore[method-assign]
    return engine


@pytest.fixture
def make(kind: str, settings: EngineSettings, request: pytest.FixtureRequest) -> Make:
    """Engines of one machine: vLLM's in rank processes, as in a job of several sizes."""
    if kind == "VLLM":
        engines: Make = request.getfixturevalue("vllm")
        return engines
    return lambda size, devices: braked(make_engine(kind, replace(settings, tensor_parallel=size)))


@pytest.fixture
async def small(
    settings: EngineSettings, exchange: Callable[[], KvExchange], publisher: Publisher
) -> AsyncIterator[Callable[..., RolloutReplica]]:
    """Replicas over the reference engine, with the newest weights: `await small(**changes of the engine)`."""
    made: list[RolloutReplica] = []

    async def start(kv: KvExchange | None = None, **changes: object) -> RolloutReplica:
        own = replace(settings, **changes)  # type: ignore[arg-type]
        made.append(
            RolloutReplica(
                f"r{len(made)}",
                lambda size, devices: braked(make_engine("Reference", own)),
                frozenset(),
                kv=kv or exchange(),
            )
        )
        await made[-1].switch_layout(1, 1)
        await made[-1].load(1, publisher.version)
        return made[-1]

    yield start
    for replica in made:
        await replica.close()


@dataclass
class Conversation:
    """A coordinator's view of responses: what is known, wherever it was generated."""

    version: int
    temperature: float = 0.0
    attempt: int = 0

    def __post_init__(self) -> None:
        self.known = {index: Generated([], []) for index in range(RESPONSES)}

    def request(self, index: int, kv: str | None) -> GenerateRequest:
        return GenerateRequest(
            key=key(index),
            attempt=self.attempt,
            prompt_token_ids=prompts(RESPONSES, length=28)[index],
            sampling=Sampling(max_tokens=LENGTH, temperature=self.temperature, seed=index, ignore_eos=True),
            weight_version=self.version,
            prefix_token_ids=tuple(self.known[index].tokens),
            kv_file=kv,
        )

    async def go_on(self, replica: RolloutReplica, until: int = LENGTH, kv: str | None = None) -> None:
        """Generate on a replica until every response has `until` tokens or has ended."""
        self.attempt += 1
        BRAKE.set(until - min(len(one.tokens) for one in self.known.values()) if until < LENGTH else LENGTH)
        self._cursor = (await replica.poll(1, 0, 0)).cursor
        await replica.submit(1, [self.request(index, kv) for index in self.known])
        async with asyncio.timeout(PATIENCE):
            while min(len(one.tokens) for one in self.known.values()) < until:
                await self.poll(replica, 5.0)

    async def poll(self, replica: RolloutReplica, wait: float = 0.0) -> None:
        report = await replica.poll(1, self._cursor, wait)
        self._cursor = report.cursor
        for delta in report.deltas:
            if delta.attempt == self.attempt:
                one = self.known[delta.key.prompt.index]
                assert delta.offset == len(one.tokens)
                one.tokens += delta.token_ids
                one.logprobs += delta.logprobs

    async def export(self, replica: RolloutReplica) -> KvExport:
        """Export the KV of all responses and read what was generated before."""
        receipt = await replica.export_kv(1, {key(index): self.attempt for index in self.known})
        BRAKE.set(LENGTH)
        await self.poll(replica)
        return receipt

    def assert_like(self, whole: Conversation) -> None:
        for index, one in self.known.items():
            assert one.tokens == whole.known[index].tokens
            apart = max(abs(a - b) for a, b in zip(one.logprobs, whole.known[index].logprobs, strict=True))
            assert apart < APART


def key(index: int) -> TrajectoryKey:
    return TrajectoryKey(PromptKey(0, index), 0)


async def stats(replica: RolloutReplica) -> KvStats:
    return (await replica.poll(1, 0, 0)).stats.kv


def grown(now: KvStats, before: KvStats) -> KvStats:
    return now + KvStats(*(-value for value in vars(before).values()))


async def whole(replica: RolloutReplica, version: int, temperature: float = 0.0) -> Conversation:
    """Generate without a move. The attempts of others are higher."""
    one = Conversation(version, temperature)
    await one.go_on(replica)
    return one


async def moving(replica: RolloutReplica, after: Conversation) -> Conversation:
    """Return responses that are half way."""
    one = Conversation(after.version, after.temperature, after.attempt)
    await one.go_on(replica, SOME)
    return one


@pytest.mark.timeout(1200)
async def test_responses_go_on_in_another_layout_with_their_kv(
    make: Make, exchange: Callable[[], KvExchange], publisher: Publisher, tmp_path: Path
) -> None:
    """1 → 2, 2 → 1 and 1 → 1 through the replica's protocol, as a switch does it; 1 → 2 → 1 bit for bit.

    A switch that computes its responses again, 1 → 2, changes no token either."""
    replica, version = RolloutReplica("r0", make, frozenset(), kv=exchange()), publisher.version
    await replica.switch_layout(1, 1)
    await replica.load(1, version)
    unmoved = await whole(replica, version)
    attempt = unmoved.attempt
    for path in ([2], [1], [2, 1]):
        before = await stats(replica)
        half = Conversation(version, attempt=attempt)
        await half.go_on(replica, SOME)
        receipt = await half.export(replica)
        assert receipt.refusal is None
        assert receipt.tokens == {
            key(index): (len(half.request(index, None).prompt_token_ids) + len(one.tokens) - 1) // 32 * 32
            for index, one in half.known.items()
        }
        assert receipt.nbytes == sum(receipt.tokens.values()) * 2 * 2 * 2 * 32 * 4
        assert receipt.seconds > 0
        await switch(replica, version, *path)
        context = sum(
            len(half.request(index, None).prompt_token_ids) + len(one.tokens) for index, one in half.known.items()
        )
        await half.go_on(replica, kv=receipt.file)
        half.assert_like(unmoved)
        attempt = half.attempt
        moved = grown(await stats(replica), before)
        tokens = sum(receipt.tokens.values())
        assert moved.exported_tokens == moved.imported_tokens == tokens
        assert moved.exported_bytes == receipt.nbytes
        assert moved.imported_bytes in (receipt.nbytes, receipt.nbytes // 2), "of all heads, or of the first rank's"
        assert moved.recomputed_tokens == context - tokens
        assert moved.import_seconds > 0
        assert sum(getattr(moved, cause.value) for cause in Mismatch) == 0
    half = Conversation(version, attempt=attempt)
    await half.go_on(replica, SOME)
    await replica.abort(1, {key(index): half.attempt for index in half.known})
    await half.poll(replica)
    before = await stats(replica)
    await switch(replica, version, 2)
    await half.go_on(replica)
    half.assert_like(unmoved)
    assert (await stats(replica)).imported_tokens == before.imported_tokens, "computed again in the other size"
    await switch(replica, version, 1)
    half, files = Conversation(version, attempt=half.attempt), []
    await half.go_on(replica, SOME)
    for size in (2, 1, None):
        receipt = await half.export(replica)
        path = tmp_path / "kv" / str(receipt.file)
        files.append(KvRegions(path, read_index(path)))
        if size is not None:
            await switch(replica, version, size)
            await half.go_on(replica, SOME + 5 * len(files), kv=receipt.file)
    assert_same_bits(files)
    await replica.close()


async def switch(replica: RolloutReplica, version: int, *sizes: int) -> None:
    """Switch to each layout in turn. A layout starts without KV: weights are loaded again."""
    for size in sizes:
        await replica.release_accelerators(1, size)
        await replica.switch_layout(1, size)
        await replica.load(1, version)


def assert_same_bits(files: Sequence[KvRegions]) -> None:
    """What the first layout exported is in what the second one, and the first one later, exported."""
    for index in range(RESPONSES):
        first, *later = (each.region(str(key(index)), range(2)) for each in files)
        assert first.shape[2] >= 2
        assert first.any()
        for each in later:
            assert torch.equal(first, each[:, :, : first.shape[2]])


@pytest.mark.timeout(1200)
async def test_a_resting_engine_measures_copies_of_its_kv_and_keeps_it(
    make: Make, exchange: Callable[[], KvExchange], publisher: Publisher, tmp_path: Path
) -> None:
    """In both sizes; what was written is what the blocks still have, and no total or file remains."""
    kv = exchange()
    replica, version = RolloutReplica("r0", make, frozenset(), kv=kv), publisher.version
    for size in (1, 2):
        await replica.switch_layout(1, size)
        await replica.load(1, version)
        half = Conversation(version, attempt=10 * size)
        await half.go_on(replica, SOME)
        ids = {engine_id(key(index), half.attempt): key(index) for index in half.known}

        def around(engine: object, ids: dict[str, TrajectoryKey] = ids) -> tuple[KvExport, KvStats, KvExport]:
            before = kv._export(replica._cache.kv_engine(), ids)
            first, kv._written = kv._written, None
            moved = kv.probe(replica._cache.kv_engine(), list(ids))
            after = kv._export(replica._cache.kv_engine(), ids)
            files = [KvRegions(one.path, one.index) for one in (first, kv._written) if one is not None]
            assert_same_bits(files)
            assert first is not None
            first.close()
            kv.drop()
            return before, moved, after

        totals = await stats(replica)
        before, moved, after = await replica._command(around)
        assert before.tokens == after.tokens
        assert moved.exported_tokens == moved.imported_tokens == sum(before.tokens.values()) > 0
        assert moved.exported_bytes == before.nbytes
        assert moved.imported_bytes in (before.nbytes, before.nbytes // 2), "of all heads, or of the first rank's"
        assert moved.export_seconds > 0 < moved.import_seconds
        assert await stats(replica) == totals
        assert list((tmp_path / "kv").glob("*.kv")) == []
        await replica.abort(1, {key(index): half.attempt for index in half.known})
    await replica.close()


def _no_space(writer: object, checksums: object) -> None:
    raise OSError(28, "No space left on device")


async def test_a_profile_moves_kv_within_its_bounds(
    small, publisher: Publisher, exchange: Callable[[], KvExchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one, and none where the engine moves no KV, or where there is no room."""
    limits = ProfileLimits(4, 200, 30.0)
    moved = (await (await small()).profile(1, limits)).moved
    assert moved.exported_tokens == moved.imported_tokens >= 4 * 128
    assert (await (await small(transfers_kv=False)).profile(1, limits)).moved == KvStats()
    monkeypatch.setattr(kv_exchange, "PROBED_BYTES", 1)
    less = (await (await small()).profile(1, limits)).moved
    assert 4 * less.exported_tokens == moved.exported_tokens, "one request, which is more than the bound"
    with monkeypatch.context() as broken:
        broken.setattr(kv_exchange.KvFileWriter, "seal", _no_space)
        profile = await (await small()).profile(1, limits)
        assert profile.moved == KvStats(), "a file that cannot be written ends no engine"
        assert len(profile.timings) > 4
    monkeypatch.setattr(kv_exchange, "needed_for_weights", lambda segment: 1 << 60)
    profile = await (await small()).profile(1, limits)
    assert profile.moved == KvStats()
    assert len(profile.timings) > 4


async def test_sampled_responses_are_those_of_a_run_without_a_move(small, publisher: Publisher) -> None:
    """The reference engine draws by seed and position. So does a replay of a recorded switch."""
    one, other = await small(), await small()
    unmoved = await whole(one, publisher.version, 1.0)
    half = await moving(one, unmoved)
    receipt = await half.export(one)
    await half.go_on(other, kv=receipt.file)
    half.assert_like(unmoved)
    assert (await stats(other)).imported_tokens == sum(receipt.tokens.values()) > 0


async def test_kv_that_was_preempted_is_computed_again(small, publisher: Publisher) -> None:
    one, tight = await small(), await small(kv_blocks=10)
    unmoved = await whole(one, publisher.version)
    half = await moving(one, unmoved)
    receipt = await half.export(one)
    await half.go_on(tight, kv=receipt.file)
    assert (await tight.poll(1, 0, 0)).stats.preemptions_total > 0
    half.assert_like(unmoved)


def flip(path: Path) -> None:
    """Damage the first response's second head."""
    region = KvRegions(path, read_index(path), writable=True).region(str(key(0)), range(1, 2))
    region[0, 0, 0, 0] ^= 1


@pytest.mark.parametrize(
    ("spoil", "changes", "cause", "count"),
    [
        pytest.param(Path.unlink, {}, Mismatch.MISSING, RESPONSES, id="unlinked"),
        pytest.param(flip, {}, Mismatch.DAMAGED, 1, id="a wrong bit"),
        pytest.param(
            lambda path: path.write_bytes(b""), {}, Mismatch.DAMAGED, RESPONSES, id="truncated", marks=pytest.mark.slow
        ),
        pytest.param(lambda path: None, {"block_size": 16}, Mismatch.SHAPE, RESPONSES, id="other blocks"),
        pytest.param(
            lambda path: None,
            {"transfers_kv": False},
            Mismatch.SHAPE,
            RESPONSES,
            id="an engine without",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_kv_that_cannot_be_used_costs_a_prefill_and_no_token(
    small, publisher: Publisher, tmp_path: Path, spoil, changes: dict[str, object], cause: Mismatch, count: int
) -> None:
    one, other = await small(), await small(**changes)
    unmoved = await whole(one, publisher.version)
    half = await moving(one, unmoved)
    receipt = await half.export(one)
    spoil(tmp_path / "kv" / receipt.file)
    context = sum(28 + index % 5 + len(each.tokens) for index, each in half.known.items())
    await half.go_on(other, kv=receipt.file)
    half.assert_like(unmoved)
    found = await stats(other)
    assert {each: getattr(found, each.value) for each in Mismatch} == dict.fromkeys(Mismatch, 0) | {cause: count}
    used = 0 if count == RESPONSES else sum(receipt.tokens.values()) - receipt.tokens[key(0)]
    assert found.imported_tokens == used
    assert found.recomputed_tokens == context - used


async def test_kv_of_another_machine_is_not_used(small, publisher: Publisher, tmp_path: Path) -> None:
    """For example that of the pod before, in the same shared memory."""
    one = await small()
    other = await small(kv=KvExchange(tmp_path / "kv", "ns/job", "rollout-0-2", publisher.folder))
    unmoved = await whole(one, publisher.version)
    half = await moving(one, unmoved)
    await half.go_on(other, kv=(await half.export(one)).file)
    half.assert_like(unmoved)
    assert ((await stats(other)).foreign, (await stats(other)).imported_tokens) == (RESPONSES, 0)


async def test_kv_of_other_weights_is_not_used(
    small, publisher: Publisher, model: LlamaForCausalLM, tmp_path: Path
) -> None:
    """Even if the file outlives the load that removes it."""
    one = await small()
    unmoved = await whole(one, publisher.version)
    half = await moving(one, unmoved)
    receipt = await half.export(one)
    content = (tmp_path / "kv" / receipt.file).read_bytes()
    other = await small() if publisher.publish(model) else one
    (tmp_path / "kv" / receipt.file).write_bytes(content)
    half.version = publisher.version
    await half.go_on(other, kv=receipt.file)
    half.assert_like(unmoved)
    assert ((await stats(other)).version, (await stats(other)).imported_tokens) == (RESPONSES, 0)


async def test_kv_of_other_tokens_is_not_used(small, publisher: Publisher) -> None:
    """A coordinator that lost the last tokens asks for fewer than the file holds, or has others."""
    one, other = await small(), await small()
    unmoved = await whole(one, publisher.version)
    half = await moving(one, unmoved)
    receipt = await half.export(one)
    for index, each in half.known.items():
        kept = 10 if index % 2 else len(each.tokens)
        del each.tokens[kept:], each.logprobs[kept:]
        if index % 2 == 0:
            each.tokens[0] = (each.tokens[0] + 1) % 128
    await half.go_on(other, kv=receipt.file)
    assert ((await stats(other)).tokens, (await stats(other)).imported_tokens) == (RESPONSES, 0)
    for index in range(1, RESPONSES, 2):
        assert half.known[index].tokens == unmoved.known[index].tokens


@pytest.mark.parametrize("name", ["/etc/passwd", "", ".", "none.kv"])
async def test_a_name_of_no_file_costs_a_prefill(small, publisher: Publisher, name: str) -> None:
    other = await small()
    one = Conversation(publisher.version)
    await one.go_on(other, 1, kv=name)
    found = await stats(other)
    assert found.missing + found.damaged == RESPONSES
    await other.abort(1, {key(index): 1 for index in range(RESPONSES)})


async def test_a_name_with_a_path_is_not_opened(small, publisher: Publisher, tmp_path: Path) -> None:
    """Even if it leads to a good file."""
    one, other = await small(), await small()
    half = await moving(one, Conversation(publisher.version))
    receipt = await half.export(one)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kv" / receipt.file).rename(tmp_path / "elsewhere" / receipt.file)
    await half.go_on(other, SOME + 5, kv=f"../elsewhere/{receipt.file}")
    assert ((await stats(other)).missing, (await stats(other)).imported_tokens) == (RESPONSES, 0)


async def test_without_room_nothing_is_written_and_the_responses_stop(
    small, publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await small()
    unmoved = await whole(one, publisher.version)
    half = await moving(one, unmoved)
    monkeypatch.setattr(kv_file, "_free", lambda folder: 1000)
    receipt = await half.export(one)
    assert receipt.file is None
    assert receipt.tokens == {}
    assert receipt.refusal is KvRefusal.NO_ROOM
    assert "of 8 responses needs" in receipt.message
    assert "1,000 are free" in receipt.message
    assert not list((tmp_path / "kv").glob("*"))
    assert (await one.poll(1, 0, 0)).stats.running == 0
    await half.go_on(one, kv=receipt.file)
    half.assert_like(unmoved)


@pytest.mark.parametrize("stage", ["the folder", "the file", "the end", *slow("the weights", "the copy")])
async def test_an_export_that_fails_stops_the_responses_and_leaves_no_file(
    small, publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    one = await small()
    unmoved = await whole(one, publisher.version)
    half = await moving(one, unmoved)
    with monkeypatch.context() as patched:
        place: tuple[object, str] = {
            "the folder": (kv_file.os, "statvfs"),
            "the weights": (kv_exchange, "needed_for_weights"),
            "the file": (kv_file.os, "open"),
            "the copy": (KvCopier, "write"),
            "the end": (KvFileWriter, "seal"),
        }[stage]
        patched.setattr(*place, fails)
        receipt = await half.export(one)
    assert (receipt.file, receipt.tokens) == (None, {})
    assert (receipt.refusal, receipt.message) == (KvRefusal.NOT_WRITTEN, "[Errno 24] Too many open files")
    assert not list((tmp_path / "kv").glob("*"))
    assert (await one.poll(1, 0, 0)).stats.running == 0
    await half.go_on(one, kv=receipt.file)
    half.assert_like(unmoved)


async def test_the_end_of_a_rank_is_no_reason_to_compute_again(
    small, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*_: object) -> None:
        raise RankDied("rank 1 of 2 has ended")

    one = await small()
    half = await moving(one, Conversation(publisher.version))
    monkeypatch.setattr(KvCopier, "write", ends)
    with pytest.raises(RankDied):
        await half.export(one)


async def test_files_of_replicas_that_load_no_more_end_with_their_version(
    small, publisher: Publisher, model: LlamaForCausalLM, tmp_path: Path
) -> None:
    """Of several replicas that export, only the one with the new layout's engine goes on to load."""
    leader, sleeper = await small(), await small()
    half = await moving(sleeper, Conversation(publisher.version))
    await half.export(sleeper)
    await sleeper.release_accelerators(1, 2)
    await leader.load(1, publisher.version)
    assert len(list((tmp_path / "kv").iterdir())) == 1
    await leader.load(1, publisher.publish(model))
    assert not list((tmp_path / "kv").iterdir())


async def test_a_new_coordinator_finds_no_file_of_the_one_before(small, publisher: Publisher, tmp_path: Path) -> None:
    one = await small()
    half = await moving(one, Conversation(publisher.version))
    await half.export(one)
    await one.ready()
    assert len(list((tmp_path / "kv").iterdir())) == 1
    await one.poll(2, 0, 0)
    await one.ready()
    assert not list((tmp_path / "kv").iterdir())


async def test_a_repeated_export_is_the_same_and_a_new_one_replaces_the_file(
    small, publisher: Publisher, tmp_path: Path
) -> None:
    one = await small()
    half = await moving(one, Conversation(publisher.version))
    receipt = await half.export(one)
    assert await half.export(one) == receipt
    assert [path.name for path in (tmp_path / "kv").iterdir()] == [receipt.file]
    await half.go_on(one, SOME + 5, kv=receipt.file)
    second = await half.export(one)
    assert [path.name for path in (tmp_path / "kv").iterdir()] == [second.file]
    assert second.file != receipt.file


async def test_a_file_lasts_until_it_is_dropped_or_other_weights_are_loaded(
    small, publisher: Publisher, model: LlamaForCausalLM, tmp_path: Path
) -> None:
    one = await small()
    half = await moving(one, Conversation(publisher.version))
    await half.export(one)
    await one.release_accelerators(1, 2)
    await one.switch_layout(1, 2)
    await one.load(1, publisher.version)
    assert len(list((tmp_path / "kv").iterdir())) == 1
    await one.load(1, publisher.publish(model))
    assert not list((tmp_path / "kv").iterdir())
    half = await moving(one, Conversation(publisher.version))
    await half.export(one)
    await one.drop_kv(1)
    await one.drop_kv(1)
    assert not list((tmp_path / "kv").iterdir())
    half = await moving(one, half)
    await half.export(one)
    await one.close()
    assert not list((tmp_path / "kv").iterdir())


async def test_waiting_unknown_and_late_attempts_have_no_kv(small, publisher: Publisher) -> None:
    one = await small()
    empty = await one.export_kv(1, {key(0): 1, key(99): 4})
    assert (empty.file, empty.tokens, empty.refusal) == (None, {}, KvRefusal.NO_BLOCK)
    half = Conversation(publisher.version, attempt=4)
    await half.go_on(one, SOME)
    stale = await one.export_kv(1, {key(0): 4})
    assert (stale.file, stale.tokens) == (None, {})
    receipt = await one.export_kv(1, {key(0): 5, key(1): 6, key(2): 4})
    assert set(receipt.tokens) == {key(0), key(1)}
    assert (await one.poll(1, 0, 0)).stats.running == RESPONSES - 2


async def test_a_replica_without_an_exchange_stops_the_responses(
    settings: EngineSettings, publisher: Publisher
) -> None:
    replica = RolloutReplica("r0", lambda size, devices: make_engine("Reference", settings), frozenset())
    assert (await replica.export_kv(1, {key(0): 1})).refusal is KvRefusal.UNSUPPORTED
    await replica.switch_layout(1, 1)
    await replica.load(1, publisher.version)
    unmoved = await whole(replica, publisher.version)
    half = await moving(replica, unmoved)
    receipt = await half.export(replica)
    assert receipt.file is None
    await half.go_on(replica, kv="some.kv")
    half.assert_like(unmoved)
    await replica.drop_kv(1)
    await replica.close()


def test_kv_that_one_rank_cannot_read_is_used_by_none() -> None:
    """Each rank verifies its own heads; the engine's ranks must schedule alike."""

    class Ranks:
        def call(self, method: str, tickets: list[str]) -> list[list[bool]]:
            assert method == "kv_open"
            return [[True, True, False, False], [True, False, True, False]]

    engine = MultiProcessEngine.__new__(MultiProcessEngine)
    engine._ranks = Ranks()  # type: ignore[assignment]
    assert engine.kv_open(["a", "b", "c", "d"]) == [True, False, False, False]  # type: ignore[list-item]


def test_a_copy_lasts_as_long_as_that_of_the_slowest_rank() -> None:
    class Ranks:
        def call(self, method: str, tickets: object) -> list[KvStats]:
            assert method == "kv_read"
            return [KvStats(0, 0, 0.0, 64, 100, 1.0), KvStats(0, 0, 0.0, 64, 90, 3.0)]

    engine = MultiProcessEngine.__new__(MultiProcessEngine)
    engine._ranks = Ranks()  # type: ignore[assignment]
    assert engine.kv_read({}) == KvStats(0, 0, 0.0, 64, 100, 3.0)


class Slots:
    """A machine's two engine slots, in place of the coordinator's fleet and its pool of replicas."""

    def __init__(self, *replicas: RolloutReplica) -> None:
        self.replicas = {replica.name: replica for replica in replicas}
        self.machine = SimpleNamespace(
            peers=SimpleNamespace(replicas=replicas),
            kv_drops=KvDrops(),
            dropping={},
            run_while_member=lambda call: call,
        )
        self.joined = {"rollout-0": self.machine}
        self.totals: dict[str, KvStats] = {}
        self.size: KvSize | None = None
        self.background: list[asyncio.Task[None]] = []

    def is_member(self, machine: object) -> bool:
        return machine is self.machine

    def run_in_background(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.background.append(task)
        return task

    async def stop(self, stopped: Sequence[Launch]) -> None:
        assert not stopped, "every response's KV is written"

    async def export_kv(self, stopped: Sequence[Launch]) -> list[tuple[RolloutReplica, KvExport]]:
        receipts = []
        for name, replica in self.replicas.items():
            attempts = {one.key: one.lease.attempt for one in stopped if one.lease.replica == name}
            if attempts:
                receipts.append((replica, await replica.export_kv(1, attempts)))
        return receipts

    async def collect(self, names: Iterable[str]) -> None:
        for name in names:
            report = await self.replicas[name].poll(1, 0, 0)
            self.totals[name], self.size = report.stats.kv, report.stats.kv_size

    def kv_stats(self, name: str) -> KvStats | None:
        return self.totals.get(name)

    @property
    def kv_size(self) -> KvSize | None:
        return self.size


async def laid_out(slots: Slots, version: int, size: int) -> list[RolloutReplica]:
    """Switch the machine to this size; return the replicas that lead its engines."""
    for replica in slots.replicas.values():
        await replica.release_accelerators(1, size)
    leading = list(slots.replicas.values())[: 2 // size]
    for replica in leading:
        await replica.switch_layout(1, size)
        await replica.load(1, version)
    return leading


async def test_a_coordinator_moves_the_kv_of_a_machine_from_1_to_2_to_1(
    settings: EngineSettings, exchange: Callable[[], KvExchange], publisher: Publisher, tmp_path: Path
) -> None:
    """The coordinator's handover over real engines: all responses go on with their KV, and greedy tokens are equal."""

    def make(size: int, devices: Sequence[str]) -> SleepableEngine:
        return make_engine("Reference", replace(settings, tensor_parallel=size))

    slots = Slots(*(RolloutReplica(f"rollout-0/replica-{n}", make, frozenset(), kv=exchange()) for n in range(2)))
    costs, version = SwitchCosts(), publisher.version
    handovers = KvHandovers(slots, slots, 1, costs)  # type: ignore[arg-type]
    leading = await laid_out(slots, version, 1)
    unmoved = await whole(leading[0], version)
    one, limit = Conversation(version, attempt=unmoved.attempt), SOME
    switch: LayoutSwitch | None = None
    for size in (2, 1, None):
        one.attempt += 1
        left = [n for n, made in one.known.items() if len(made.tokens) < LENGTH]
        launches = [Launch(key(n), Lease(leading[n % len(leading)].name, one.attempt)) for n in left]
        await handovers.expect(launches)
        cursors = {}
        for replica in leading:
            own = [launch for launch in launches if launch.lease.replica == replica.name]
            at = {launch.key.prompt.index: len(one.known[launch.key.prompt.index].tokens) for launch in own}
            cursors[replica.name] = (await replica.poll(1, 0, 0)).cursor
            asked = [one.request(n, handovers.file_of(launch, at[n])) for n, launch in zip(at, own, strict=True)]
            assert all((request.kv_file is None) == (switch is None) for request in asked)
            await replica.submit(1, asked)
        async with asyncio.timeout(PATIENCE):
            # In turn: one that is polled late would run ahead to the end of its responses.
            while min(len(one.known[n].tokens) for n in left) < limit:
                for replica in leading:
                    one._cursor = cursors[replica.name]
                    await one.poll(replica, 0.05)
                    cursors[replica.name] = one._cursor
        if switch is not None:
            await slots.collect(replica.name for replica in leading)
            names = {launch.key: launch.lease.replica for launch in launches}
            handovers.end_taken(lambda _: False, names.get, lambda each: len(one.known[each.prompt.index].tokens))
            await asyncio.gather(*slots.background)
            assert not list((tmp_path / "kv").iterdir())
            assert switch.imported_tokens == switch.exported_tokens > len(left) * 32 > 0
            assert (switch.state, switch.moved_bytes) == (State.MIGRATE, switch.exported_bytes)
        if size is None:
            break
        decision = SwitchDecision(SwitchOutcome.SWITCHED, size, State.MIGRATE)
        switch = LayoutSwitch("rollout-0", 3 - size, size, decision, reached=size, responses=tuple(map(key, left)))
        await slots.collect(replica.name for replica in leading)
        assert slots.size is not None
        assert slots.size.token_bytes == 2 * 2 * 2 * 32 * 4
        assert slots.size.room_tokens > 0
        await handovers.stop(switch, slots.machine, launches)  # type: ignore[arg-type]
        handovers.open("rollout-0")
        for replica in leading:
            one._cursor = 0
            for delta in (await replica.poll(1, 0, 0)).deltas:
                made = one.known[delta.key.prompt.index]
                if delta.attempt == one.attempt and delta.offset + len(delta.token_ids) > len(made.tokens):
                    fresh = len(made.tokens) - delta.offset
                    made.tokens += delta.token_ids[fresh:]
                    made.logprobs += delta.logprobs[fresh:]
        leading, limit = await laid_out(slots, version, size), LENGTH if size == 1 else SOME + 30
    one.assert_like(unmoved)
    assert set(costs._all.parts) == {Part.EXPORT, Part.IMPORT}
    for replica in slots.replicas.values():
        await replica.close()
