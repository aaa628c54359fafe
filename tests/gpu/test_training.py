"""The trainer on a GPU: the same mathematics as on a CPU, the memory that it should take, and its state bit for bit."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from rljob_runtime.protocols import Chain
from rljob_runtime.training.algorithm.sums import LossSums
from rljob_runtime.training.checkpoint import rng_state
from rljob_runtime.training.checkpoint.store import TENSORS
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.attention import Segments, _attention_by_segment, _varlen_attention
from rljob_runtime.training.model.optimizer import MasterOptimizer
from rljob_runtime.training.model.packing import Segment
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.pretrained import load_model
from rljob_runtime.training.model.sharding import RankGroup
from rljob_runtime.training.model.token_logprobs import token_logprobs
from rljob_runtime.training.ranks.settings import TrainerSettings
from rljob_runtime.training.step.contribution import combine, normalise
from tests.support.training.naive_gradient import CASES, TOLERANCE, contributions, largest_error, naive_gradient
from tests.support.training.toys import FakePublisher, LoneLearner, LoneRank, keep_norms_precise, make_groups

CHAIN = Chain(1, 0, ())


@pytest.fixture
def norms_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_norms_precise(monkeypatch)


def learner_of(
    folder: Path, config: TrainingConfig, *, device: str = "cuda", ranks: RankGroup | None = None
) -> LoneLearner:
    def policy(trained: bool) -> Policy:
        model = load_model(folder, dtype=config.compute_dtype, device=device)
        if ranks is not None:
            ranks.shard(model)
        return Policy(model.requires_grad_(trained), temperature=config.temperature, autocast=config.autocast(device))

    learning = policy(True)
    optimizer = MasterOptimizer(learning.model, config)
    return LoneLearner(
        learning, optimizer, config, reference=policy(False) if config.kl_coefficient else None, ranks=ranks
    )


def settings_of(model: Path, volume: Path, **config: object) -> TrainerSettings:
    return TrainerSettings(
        training=TrainingConfig(**{"dtype": "float32", "learning_rate": 1e-2, **config}),
        model_source=str(model),
        cache_folder=volume / "cache",
        checkpoint_folder=volume / "checkpoints",
        export_folder=volume / "model",
        device="cuda",
    )


@pytest.mark.usefixtures("norms_in_full_precision")
@pytest.mark.parametrize("settings", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize(("dtype", "device"), [("float64", "cuda"), ("float32", "cpu")])
def test_any_split_gives_the_gradient_of_the_naive_implementation(model_folder, dtype, device, settings) -> None:
    """In double precision of the one on the GPU: the rotation's angles are single precision on either device."""
    config = TrainingConfig(dtype=dtype, max_tokens_per_microbatch=40, **settings)
    groups = make_groups(seed=1, count=6)
    with torch.device(device):
        wanted, _ = naive_gradient(model_folder, groups, config)
    assert all(gradient.device.type == device for gradient in wanted.values())
    learner = learner_of(model_folder, config)
    for parts in (1, 4):
        total = normalise(combine(contributions(learner, groups, parts)), config.aggregation)
        found = {name: gradient.to(device) for name, gradient in total.items()}
        assert largest_error(found, wanted) <= TOLERANCE[dtype]


def test_early_sums_and_the_rest_are_the_update_of_the_whole_batch(model_folder) -> None:
    config = TrainingConfig(dtype="float64", max_tokens_per_microbatch=60, learning_rate=1e-2)
    groups = make_groups(seed=4, count=8)
    plain, streamed = learner_of(model_folder, config), learner_of(model_folder, config)
    wanted = plain.train(1, groups)
    for part in (groups[5:6], groups[:3]):
        streamed.contribute_early(1, part)
    report = streamed.train(1, groups)
    assert report.early_groups == 4
    assert report.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-12)
    for name, weight in plain.optimizer.compute.items():
        torch.testing.assert_close(streamed.optimizer.compute[name], weight, rtol=1e-9, atol=1e-12)


def long_groups(count: int, responses: int, length: int) -> list:
    groups = make_groups(seed=7, count=count, responses=responses, max_length=length)
    rng = random.Random(8)
    return [
        dataclasses.replace(group, prompt_token_ids=tuple(rng.randrange(37) for _ in range(33 + 5 * index)))
        for index, group in enumerate(groups)
    ]


def test_bfloat16_sums_are_those_of_full_precision_but_for_its_rounding(larger_folder) -> None:
    """One kernel for all segments, grouped heads, shared prompts: with the mask aligned to the other corner,
    or with a prompt left out, the error is near 1. That of the rounding is up to 0.07 here."""
    groups = long_groups(count=6, responses=5, length=120)
    # Without a clip: which tokens it cuts may depend on a rounding.
    exact = TrainingConfig(dtype="float32", max_tokens_per_microbatch=700, clip_low=1.0, clip_high=1e4)
    rounded = dataclasses.replace(exact, dtype="bfloat16")
    learner, wide = learner_of(larger_folder, rounded), learner_of(larger_folder, exact)
    with torch.no_grad():  # the same weights: rounded ones
        for name, parameter in wide.optimizer.compute.items():
            parameter.copy_(learner.optimizer.compute[name])
    for parameter in learner.optimizer.compute.values():
        assert parameter.dtype == torch.float32
        torch.testing.assert_close(parameter, parameter.bfloat16().float(), rtol=0, atol=0)
    found, wanted = (one.sums_of(1, groups) for one in (learner, wide))
    for name, gradient in found.gradients.items():
        assert gradient.dtype == torch.float32
        error = (gradient - wanted.gradients[name]).norm() / wanted.gradients[name].norm()
        assert float(error) < 0.15, name
    assert found.sums.entropy == pytest.approx(wanted.sums.entropy, rel=1e-2)


@pytest.mark.parametrize("window", [None, 2, 40, 300])
def test_the_kernel_for_all_segments_gives_what_one_call_a_segment_gives(window) -> None:
    """A window counts over a segment's prefix and the segment itself, whose tokens are not beside each other."""
    segments = Segments(
        (
            Segment(0, 70, 0, 0),
            Segment(70, 130, 0, 70),
            Segment(200, 1, 0, 70),
            Segment(201, 33, 201, 0),
            Segment(234, 66, 201, 33),
        ),
        torch.device("cuda"),
    )
    found, wanted = [], []
    for attend, results in ((_varlen_attention, found), (_attention_by_segment, wanted)):
        torch.manual_seed(3)
        query = torch.randn(1, 8, 300, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        key, value = (
            torch.randn(1, 2, 300, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2)
        )
        mixed = attend(query, key, value, segments, None, window)
        (mixed * torch.randn(mixed.shape, device="cuda")).sum().backward()
        results += [mixed, query.grad, key.grad, value.grad]
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert float((one - other).float().norm() / other.float().norm()) < 0.02


def test_logprobs_take_the_memory_of_the_logits_and_of_their_gradient() -> None:
    rows, vocabulary = 2048, 128_000
    logits = torch.randn(rows, vocabulary, dtype=torch.bfloat16, device="cuda").requires_grad_()
    places = torch.arange(rows, device="cuda")
    targets = torch.randint(vocabulary, (rows,), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    logprobs, entropy = token_logprobs(logits, places, targets, temperature=1.3, dtype=torch.float32)
    (logprobs * torch.linspace(-1, 1, rows, device="cuda")).sum().backward()
    taken = torch.cuda.max_memory_allocated() - before
    assert taken < logits.nbytes + 6 * 4 * (1 << 25)
    assert entropy is not None
    some = torch.randint(rows, (32,), device="cuda")
    wide = logits[some].detach().double() / 1.3
    torch.testing.assert_close(
        logprobs[some].double(), wide.log_softmax(-1)[torch.arange(32, device="cuda"), targets[some]],
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


def stored(settings: TrainerSettings, step: int) -> dict[str, torch.Tensor]:
    return load_file(settings.checkpoint_folder / f"step-{step:08d}" / TENSORS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_brings_back_every_bit(larger_folder, tmp_path, dtype) -> None:
    """Of master weights, moments and weights in hand; and every random generator goes on where it was."""
    settings = settings_of(larger_folder, tmp_path, dtype=dtype)
    first = LoneRank(settings, FakePublisher)
    first.start(1)
    for step in (1, 2):
        first.train(1, step, make_groups(step, 3))
    first.checkpoint(1, 2, "{}")
    drawn = torch.rand(4, device="cuda"), torch.rand(4)
    held = {name: weight.detach().clone() for name, weight in first._started.optimizer.compute.items()}
    first.close()

    again = LoneRank(settings, FakePublisher)
    torch.manual_seed(99)
    assert again.start(1).step == 2
    torch.testing.assert_close((torch.rand(4, device="cuda"), torch.rand(4)), drawn, rtol=0, atol=0)
    assert all(torch.equal(weight, held[name]) for name, weight in again._started.optimizer.compute.items())
    assert all(weight.is_cuda for weight in again._started.optimizer.compute.values())
    on_disk = stored(settings, 2)
    for kind, named in again._started.optimizer.state().items():
        for name, tensor in named.items():
            assert torch.equal(tensor.cpu(), on_disk[f"{kind}/{name}"])
    assert again.train(1, 3, make_groups(3, 3)).step == 3
    again.close()


def test_random_generators_of_both_devices_are_brought_back() -> None:
    rng_state.seed_all(5, 0)
    torch.rand(3, device="cuda")
    state = rng_state.capture()
    drawn = torch.rand(3, device="cuda"), torch.rand(3)
    torch.manual_seed(1)
    rng_state.restore(state)
    torch.testing.assert_close((torch.rand(3, device="cuda"), torch.rand(3)), drawn, rtol=0, atol=0)


@pytest.fixture
def one_of_one(tmp_path: Path) -> Iterator[RankGroup]:
    """A group of one that is distributed all the same: NCCL, sharded parameters and all."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.FileStore(str(tmp_path / "meeting"), 1), rank=0, world_size=1)
    group = RankGroup(device="cuda")
    group.mesh = init_device_mesh("cuda", (1,))
    yield group
    group.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ranks_over_nccl_are_one_rank_alone(larger_folder, one_of_one, dtype) -> None:
    """Of one rank, for there is one GPU: every collective is called, nothing is added up."""
    config = TrainingConfig(dtype=dtype, learning_rate=1e-2)
    groups = make_groups(seed=2, count=4)
    alone, sharded = learner_of(larger_folder, config), learner_of(larger_folder, config, ranks=one_of_one)
    assert all(isinstance(weight, DTensor) for weight in sharded.optimizer.compute.values())
    wanted, report = alone.train(1, groups), sharded.train(1, groups)
    # One part in a hundred at bfloat16: the order in which products are added differs.
    rel = 1e-5 if dtype == "float32" else 1e-2
    assert report.grad_norm == pytest.approx(wanted.grad_norm, rel=rel)
    assert report.loss == pytest.approx(wanted.loss, rel=rel, abs=1e-6)
    for name, weight in alone.optimizer.master.items():
        found = sharded.optimizer.master[name]
        place = torch.empty_like(found)
        one_of_one.scatter_into(place, weight.detach())
        moved = (found.full_tensor() - weight).detach().norm() / weight.detach().norm()
        assert float(moved) < (1e-4 if dtype == "float32" else 2e-2), name
        assert torch.equal(place.full_tensor(), weight)
    assert one_of_one.sum(LossSums(loss=2.5, tokens=7)) == LossSums(loss=2.5, tokens=7)
    blob = bytes(range(256)) * 5
    assert one_of_one.gather_bytes(blob) == [blob]


def test_the_trainers_memory_is_that_of_its_parts(larger_folder, tmp_path) -> None:
    """Rounded weights, master weights and two moments, 4 bytes each, between steps: no gradient stays."""
    before = torch.cuda.memory_allocated()
    trainer = LoneRank(settings_of(larger_folder, tmp_path, dtype="bfloat16"), FakePublisher)
    parameters = trainer.start(1).parameters
    for step in (1, 2):
        trainer.train(1, step, make_groups(step, 3))
    assert torch.cuda.memory_allocated() - before < 1.2 * 16 * parameters + (12 << 20)
    trainer.close()
