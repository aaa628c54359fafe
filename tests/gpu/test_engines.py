"""Engines on a GPU: the trainer's logprobs, weights by version out of the relay's memory, moves, and memory given back.

vLLM's part is skipped where it is not installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rljob_runtime.relay.manifest import checksum, layout
from rljob_runtime.relay.segment import SegmentWriter
from rljob_runtime.relay.tensors import describe, gather
from rljob_runtime.rollout.engines.base import EngineRequest, EngineSettings, KvTicket, SleepableEngine
from rljob_runtime.rollout.engines.factory import make_engine
from rljob_runtime.rollout.engines.multi_process import PEERS, MultiProcessEngine
from rljob_runtime.rollout.engines.rank_processes import ForkServer
from rljob_runtime.rollout.engines.reference.engine import ReferenceEngine
from rljob_runtime.rollout.engines.weights import VersionUnavailable, open_version
from rljob_runtime.rollout.kv.kv_file import KvFileWriter, KvRegions, Origin, plan, read_index
from tests.support.rollout.engines import (
    Generated,
    Publisher,
    collect,
    prompts,
    run,
    tiny_config,
    tiny_model,
    trainer_logprobs,
)

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.15}
"""Of a logprob: in bfloat16 the trainer's own two ways to compute it are this far apart."""

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: pip install rljob[vllm]")
KINDS = ["Reference", pytest.param("VLLM", marks=[needs_vllm, pytest.mark.timeout(600)])]


@pytest.fixture(scope="module")
def config() -> LlamaConfig:
    """Heads of 64: what attention kernels take."""
    return tiny_config(
        hidden_size=256,
        intermediate_size=512,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        dtype="bfloat16",
    )


def rounded(seed: int, config: LlamaConfig) -> LlamaForCausalLM:
    """On the CPU in fp32, with weights that bfloat16 holds exactly."""
    model = tiny_model(seed, config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    return model


@pytest.fixture(scope="module")
def model(config: LlamaConfig) -> LlamaForCausalLM:
    return rounded(1, config)


@pytest.fixture(scope="module")
def other_model(config: LlamaConfig) -> LlamaForCausalLM:
    return rounded(2, config)


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    publisher = Publisher(tmp_path_factory.mktemp("shm") / "segment")
    yield publisher
    publisher.close()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, config: LlamaConfig, publisher: Publisher) -> EngineSettings:
    folder = tmp_path_factory.mktemp("model")
    config.save_pretrained(folder)
    return EngineSettings(
        folder=folder,
        weights=publisher.folder,
        dtype="bfloat16",
        max_model_len=256,
        max_running=32,
        kv_cache_bytes=256 << 20,
        memory_fraction=0.2,
    )


Engines = Callable[..., SleepableEngine]


@pytest.fixture(scope="module")
def engines(settings: EngineSettings) -> Iterator[Engines]:
    """`engines(kind, 1)` is another engine of a kind, in a process of its own and on the same GPU as
    `engines(kind, 0)`: of the engines of a process, vLLM lets one sleep."""
    made: dict[object, SleepableEngine] = {}
    fork_servers: list[ForkServer] = []

    def get(kind: str, number: int = 0) -> SleepableEngine:
        if (kind, number) not in made and number == 0:
            made[kind, number] = make_engine(kind, settings)
        elif (kind, number) not in made:
            fork_servers.append(ForkServer(PEERS[kind]))
            made[kind, number] = MultiProcessEngine(fork_servers[-1], settings, ["0"])
        return made[kind, number]

    yield get
    for engine in made.values():
        engine.close()
    for fork_server in fork_servers:
        fork_server.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def engine(kind: str, engines: Engines, publisher: Publisher, model: LlamaForCausalLM) -> SleepableEngine:
    engine = engines(kind)
    engine.load(publisher.publish(model))
    return engine


def asked(name: str, tokens: tuple[int, ...], new: int, **changes: object) -> EngineRequest:
    return EngineRequest(name, tokens, new, **({"temperature": 0.0} | changes))  # type: ignore[arg-type]


def assert_logprobs(model: LlamaForCausalLM, prompt: tuple[int, ...], got: Generated, temperature: float) -> None:
    expected = trainer_logprobs(model, prompt, got.tokens, temperature)
    apart = torch.tensor(got.logprobs) - torch.tensor(expected)
    assert float(apart.abs().max()) < TOLERANCE["bfloat16"]
    assert abs(float(apart.mean())) < 0.01


def assert_equal_but_for_ties(
    model: LlamaForCausalLM, prompt: tuple[int, ...], found: list[int], wanted: list[int]
) -> None:
    """From the first token on in which they differ, two continuations have nothing to do with each other."""
    place = next((i for i, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1]), None)
    if place is not None:
        one, other = (trainer_logprobs(model, prompt, tokens[: place + 1], 0.0)[-1] for tokens in (found, wanted))
        assert abs(one - other) < TOLERANCE["bfloat16"]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_logprobs_are_the_trainers_at_the_same_temperature(engine, model, temperature) -> None:
    for index, prompt in enumerate(prompts(6)):
        got = run(engine, [asked("one", prompt, 40, temperature=temperature, seed=index)])["one"]
        assert_logprobs(model, prompt, got, temperature)


@pytest.mark.parametrize("choice", [{"top_p": 0.5}, {"top_k": 5}, {"min_p": 0.2}], ids=str)
def test_logprobs_know_all_tokens_whatever_is_left_out(engine, model, choice) -> None:
    """vLLM's second model runner has a sampler of its own. A request that leaves nothing out shares the batch."""
    asked_for = prompts(6)
    requests = [asked(f"r{i}", p, 40, temperature=0.7, seed=i, **choice) for i, p in enumerate(asked_for)]
    got = run(engine, [*requests, asked("free", asked_for[0], 40, temperature=1.3, seed=9)])
    for index, prompt in enumerate(asked_for):
        assert_logprobs(model, prompt, got[f"r{index}"], 0.7)
    assert_logprobs(model, asked_for[0], got["free"], 1.3)


def test_the_reference_engine_in_full_precision_is_the_trainer(settings, publisher, model) -> None:
    engine = ReferenceEngine(replace(settings, dtype="float32"))
    engine.load(publisher.publish(model))
    for index, prompt in enumerate(prompts(6)):
        got = run(engine, [asked("one", prompt, 40, temperature=1.0, seed=index)])["one"]
        expected = trainer_logprobs(model, prompt, got.tokens, 1.0)
        torch.testing.assert_close(got.logprobs, expected, atol=TOLERANCE["float32"], rtol=0.0)
    engine.close()


def test_weights_are_swapped_by_version_and_no_prefix_stays(engine, publisher, model, other_model) -> None:
    """The prompt is generated from under the old weights first: a block that they filled would show."""
    prompt = prompts(1, length=100)[0]
    assert_logprobs(model, prompt, run(engine, [asked("old", prompt, 24)])["old"], 0.0)
    before = engine.stats()
    version = publisher.publish(other_model)
    with pytest.raises(VersionUnavailable):
        engine.load(version + 1)
    engine.load(version)
    assert engine.weight_version == version
    assert engine.stats().prefix_resets_total == before.prefix_resets_total + 1
    got = run(engine, [asked("new", prompt, 24)])["new"]
    assert_logprobs(other_model, prompt, got, 0.0)
    expected = trainer_logprobs(model, prompt, got.tokens, 0.0)
    assert (torch.tensor(got.logprobs) - torch.tensor(expected)).abs().max() > 0.3


def test_a_moved_response_goes_on_as_it_would_have(engine, kind, engines, publisher, model) -> None:
    """Repack's move: aborted here, continued on another engine of the same GPU from its tokens. Greedy tokens are the
    same up to one that bfloat16 cannot tell from the best, and the logprobs are the trainer's in any case."""
    questions = prompts(8)
    whole = run(engine, [asked(f"w{i}", p, 60) for i, p in enumerate(questions)])
    for i, prompt in enumerate(questions):
        engine.add(asked(f"p{i}", prompt, 60))
    partial: dict[str, Generated] = {}
    while len(partial) < 8 or min(len(g.tokens) for g in partial.values()) < 25:
        collect(engine.step(), partial)
    before = engine.stats().aborted_total
    engine.abort(list(partial))
    assert engine.stats().aborted_total == before + 8
    assert not engine.busy
    assert engine.stats().kv_use == 0.0

    other = engines(kind, 1)
    other.load(publisher.version)
    rest = run(
        other,
        [
            asked(f"r{i}", questions[i] + tuple(g.tokens), 60 - len(g.tokens), generated=len(g.tokens))
            for i, g in ((int(name[1:]), g) for name, g in partial.items())
        ],
    )
    for i, prompt in enumerate(questions):
        joined = Generated(
            partial[f"p{i}"].tokens + rest[f"r{i}"].tokens, partial[f"p{i}"].logprobs + rest[f"r{i}"].logprobs
        )
        assert len(joined.tokens) == 60
        assert_logprobs(model, prompt, joined, 0.0)
        assert_equal_but_for_ties(model, prompt, joined.tokens, whole[f"w{i}"].tokens)


def test_kv_moves_between_two_processes_of_a_gpu(kind, settings, publisher, model, tmp_path) -> None:
    """A switch's move: the blocks are copied to shared memory by one process and from it by another, bit for bit."""
    version, questions = publisher.publish(model), prompts(8, length=40)
    own, fork_server = replace(settings, transfers_kv=True), ForkServer(PEERS[kind])
    one, other = (MultiProcessEngine(fork_server, own, ["0"]) for _ in range(2))
    try:
        one.load(version)
        for i, prompt in enumerate(questions):
            one.add(asked(f"p{i}", prompt, 60))
        partial: dict[str, Generated] = {}
        while len(partial) < 8 or min(len(g.tokens) for g in partial.values()) < 40:
            collect(one.step(), partial)
        shape, origin = one.kv_shape(), Origin("job", "machine", version)
        assert shape is not None
        files, names = [], {id: id for id in partial}
        for engine in (one, other):
            if engine is other:
                one.abort(list(partial))
                one.sleep()
                other.load(version)
                tickets = [KvTicket(files[0].path, id, files[0].index.responses[id].tokens) for id in names]
                assert other.kv_open(tickets) == [True] * 8
                for ticket in tickets:
                    got = partial[ticket.response]
                    tokens = questions[int(ticket.response[1:])] + tuple(got.tokens)
                    rest = asked(ticket.response, tokens, 60 - len(got.tokens), generated=len(got.tokens), kv=ticket)
                    other.add(rest)
                collect(other.step(), partial)
                assert other.stats().kv.imported_tokens == sum(ticket.tokens for ticket in tickets)
            writer = KvFileWriter.create(tmp_path, plan(origin, shape, engine.kv_held(list(names))))
            checksums = engine.kv_write(writer.path, writer.index, names)
            writer.seal({id: [each[head] for head in range(shape.kv_heads)] for id, each in checksums.items()})
            files.append(writer)
        before, after = (KvRegions(file.path, read_index(file.path)) for file in files)
        for id in names:
            first, second = (each.region(id, range(shape.kv_heads)) for each in (before, after))
            assert torch.equal(first, second[:, :, : first.shape[2]])
        while other.busy:
            collect(other.step(), partial)
        for id, got in partial.items():
            assert_logprobs(model, questions[int(id[1:])], got, 0.0)
        for file in files:
            file.close()
    finally:
        one.close()
        other.close()
        fork_server.close()


def test_a_sleeping_engine_gives_its_memory_back_and_wakes(engine, kind, publisher, model, other_model) -> None:
    torch.cuda.synchronize()
    awake, _ = torch.cuda.mem_get_info()
    engine.sleep()
    asleep, _ = torch.cuda.mem_get_info()
    assert asleep - awake > 200 << 20  # the KV cache alone is 256 MiB
    assert engine.weight_version is None
    engine.wake()
    engine.load(publisher.publish(other_model))
    prompt = prompts(1)[0]
    assert_logprobs(other_model, prompt, run(engine, [asked("woken", prompt, 24)])["woken"], 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_are_forked_from_a_process_that_has_not_touched_the_gpu(kind, settings, publisher, model) -> None:
    """Layouts of several sizes run in such processes, also those of one accelerator: one is built, sleeps, another is
    built beside it, and the first wakes."""
    fork_server = ForkServer(PEERS[kind])
    try:
        version = publisher.publish(model)
        prompt = prompts(1)[0]
        made = []
        for _ in range(2):
            engine = MultiProcessEngine(fork_server, settings, ["0"])
            made.append(engine)
            engine.load(version)
            assert_logprobs(model, prompt, run(engine, [asked("forked", prompt, 24)])["forked"], 0.0)
            engine.sleep()
        made[0].wake()
        made[0].load(version)
        assert_logprobs(model, prompt, run(made[0], [asked("woken", prompt, 24)])["woken"], 0.0)
        for engine in made:
            engine.close()
    finally:
        fork_server.close()


def test_weights_leave_the_gpu_and_come_back_exactly(tmp_path: Path) -> None:
    """Of a size that takes several chunks, with values of every magnitude, rounded once."""
    generator = torch.Generator("cuda").manual_seed(3)
    weights = {
        f"layer.{n}": torch.randn(1000 + n, 517, device="cuda", generator=generator) * 10.0 ** (n - 8)
        for n in range(16)
    }
    segment = SegmentWriter.open(tmp_path / "segment")
    draft = segment.begin(layout(7, describe(weights.items(), torch.bfloat16), chunk_bytes=1 << 20))
    gather(weights.items(), draft.manifest, draft.buffer())
    draft.seal([checksum(draft.chunk(index)) for index in range(draft.manifest.chunks)])
    segment.commit(draft)
    arrived = {name: tensor.to("cuda") for name, tensor in open_version(segment.folder, 7)}
    assert arrived.keys() == weights.keys()
    for name, tensor in arrived.items():
        assert torch.equal(tensor, weights[name].bfloat16())
    segment.close()
