"""`rljob bench gpu`: what the trainer, the weights' way and the reference engine make of one GPU.

A model of a real one's shape with random weights: one step of GRPO, its weights into the relay's memory (the trainer's
stall) and out of it into an engine, greedy responses of that engine, and switches between two engines of the GPU in the
middle of their responses. Limits are measured in the same run: a large matrix product in bfloat16, and copies between
the device and page-locked memory.
"""

from __future__ import annotations

import mmap
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from rljob_bench.lib import engine_switch
from rljob_runtime.cli.bench_result import OptionError, figure
from rljob_runtime.protocols.trajectory import FinishReason, Group, PromptKey, Response, ScoredResponse, TrajectoryKey
from rljob_runtime.relay import tensors as flat
from rljob_runtime.relay.manifest import checksum, layout
from rljob_runtime.relay.segment import SHARED_MEMORY, SegmentWriter
from rljob_runtime.rollout.engines.base import EngineRequest, EngineSettings
from rljob_runtime.rollout.engines.reference.engine import ReferenceEngine
from rljob_runtime.training.batch.delivery import Progress, plan_train
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.optimizer import MasterOptimizer
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.pretrained import empty_model
from rljob_runtime.training.step.learner import Learner

GIGA = 1e9
CHUNK_BYTES = 32 << 20
SWITCH_PARTS = ("export", "sleep", "wake", "load", "take")
TIMES = 3
"""Every figure is the median of so many runs after one that does not count."""
SQUARE = 8192
"""Rows of the matrix product that is the limit."""


@dataclass(frozen=True)
class Plan:
    """A model's shape (Qwen2.5-1.5B), and a step: `prompts` groups of `responses` of at most `longest` tokens."""

    hidden: int = 1536
    intermediate: int = 8960
    layers: int = 28
    heads: int = 12
    kv_heads: int = 2
    vocabulary: int = 151_936
    prompts: int = 16
    responses: int = 8
    prompt: int = 256
    longest: int = 1024
    microbatch: int = 16_384
    batch: int = 64
    generated: int = 64
    context: int = 896
    """Tokens of each of `batch` responses whose KV is moved."""


QUICK = Plan(
    hidden=512, intermediate=1536, layers=4, heads=8, vocabulary=32_000, prompts=4, longest=256, batch=16, context=128
)
READ_ONLY = 8
"""CUDA's flag for page-locked memory that the device only reads."""


def gpu(*, quick: bool, seed: int) -> dict[str, Any]:
    """Run the benchmark; see the module's text. Raises `OptionError` without a GPU."""
    if not torch.cuda.is_available():
        raise OptionError("bench gpu: torch sees no GPU here; run it where `nvidia-smi` shows one")
    plan = QUICK if quick else Plan()
    with tempfile.TemporaryDirectory(prefix="rljob-bench-", dir=SHARED_MEMORY) as root:
        folder = _describe(plan, Path(root) / "model")
        training, learner = _training(plan, folder, seed)
        segment = SegmentWriter.open(Path(root) / "segment")
        try:
            stall, nbytes = _publishing(learner, segment)
            del learner
            torch.cuda.empty_cache()
            load, decode = _generation(plan, folder, segment.folder, seed)
            torch.cuda.empty_cache()
            locked = _locked_load(segment.folder)
            switches = _switching(plan, folder, segment.folder, seed)
        finally:
            segment.close()
    flops, down, up = _limits()
    speed = nbytes / GIGA
    switch = {part: statistics.median(getattr(one, part) for one in switches.each[1:]) for part in SWITCH_PARTS}
    kv = switches.each[-1].kv_bytes / GIGA
    return {
        "bench": "gpu",
        "seed": seed,
        "settings": {**vars(plan), "quick": quick, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__},
        "figures": [
            figure("training_tokens_per_second", training["tokens"] / training["seconds"], unit="tokens/s"),
            figure(
                "training_flops", training["flops"] / training["seconds"] / 1e12, None, "six operations a weight and "
                "token; what is computed again for want of memory does not count", flops / 1e12, unit="TFLOP/s",
            ),
            figure("training_peak_bytes_a_weight", training["peak"] / training["weights"], unit="B", better="lower"),
            figure("publishing_stall", speed / stall, None, "copies to page-locked memory", down, unit="GB/s"),
            figure("loading", speed / load, None, "copies from page-locked memory", up, unit="GB/s"),
            figure("loading_page_locked", speed / locked, None, "the same, locked before", up, unit="GB/s"),
            figure("reference_engine", plan.batch / decode, unit="tokens/s"),
            figure("kv_export", kv / switch["export"], None, "copies to page-locked memory", down, unit="GB/s"),
            figure("kv_import", kv / switch["take"], None, "copies from page-locked memory", up, unit="GB/s"),
            figure("kv_moved_over_prefilled", (switch["export"] + switch["take"]) / switches.prefill, better="lower"),
            figure("sleep_and_wake_over_build", (switch["sleep"] + switch["wake"]) / switches.build, better="lower"),
        ],
        "rows": [
            {"weights": training["weights"], "published_bytes": nbytes, "step_tokens": training["tokens"]},
            {"kv_bytes": switches.each[-1].kv_bytes, "build_seconds": switches.build,
             "prefill_seconds": switches.prefill, **{f"{part}_seconds": seconds for part, seconds in switch.items()}},
        ],
    }  # fmt: skip


def _describe(plan: Plan, folder: Path) -> Path:
    """Write the folder of a model that has no weights yet, and return it."""
    config = AutoConfig.for_model(
        "qwen2",
        hidden_size=plan.hidden,
        intermediate_size=plan.intermediate,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.heads,
        num_key_value_heads=plan.kv_heads,
        vocab_size=plan.vocabulary,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        architectures=["Qwen2ForCausalLM"],
    )
    config.save_pretrained(folder)
    return folder


def _training(plan: Plan, folder: Path, seed: int) -> tuple[dict[str, float], Learner]:
    """Measure a step as the trainer makes it on an accelerator; return the figures, and the learner that made it."""
    torch.manual_seed(seed)
    config = TrainingConfig(max_tokens_per_microbatch=plan.microbatch)
    with torch.device("cuda"):
        model = empty_model(folder, device="cuda")
    policy = Policy(model, temperature=config.temperature, autocast=config.autocast("cuda"))
    policy.enable_checkpointing()
    learner = Learner(policy, MasterOptimizer(model, config), config)
    groups = _groups(plan, random.Random(seed))
    delivery, (shares,) = plan_train(Progress(0, {}, config.row_rules), 1, groups, ranks=1)
    tokens = sum(len(row.prompt_token_ids) + len(row.token_ids) - len(row.responses) for row in shares[0].rows())
    weights = sum(parameter.numel() for parameter in model.parameters())
    torch.cuda.reset_peak_memory_stats()
    steps = iter(range(1, TIMES + 2))
    seconds = _median(lambda: learner.train(next(steps), delivery, shares))
    peak = torch.cuda.max_memory_allocated()
    return {
        "tokens": tokens,
        "seconds": seconds,
        "peak": peak,
        "weights": weights,
        "flops": 6 * weights * tokens,
    }, learner


def _groups(plan: Plan, rng: random.Random) -> list[Group]:
    def draw(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(plan.vocabulary) for _ in range(count))

    def response(prompt: PromptKey, sample: int) -> ScoredResponse:
        tokens = draw(rng.randint(plan.longest // 4, plan.longest))
        made = Response(
            key=TrajectoryKey(prompt, sample), attempt=0, weight_version=0, token_ids=tokens,
            logprobs=(-11.0,) * len(tokens), finish_reason=FinishReason.LENGTH, replica="bench",
        )  # fmt: skip
        return ScoredResponse(made, float(rng.random() < 0.5))

    keys = [PromptKey(0, index) for index in range(plan.prompts)]
    return [Group(key, draw(plan.prompt), tuple(response(key, n) for n in range(plan.responses))) for key in keys]


def _publishing(learner: Learner, segment: SegmentWriter) -> tuple[float, int]:
    """Seconds in which the trainer stands still, and the bytes that it publishes."""
    versions = iter(range(1, TIMES + 2))
    tensors = learner.optimizer.compute

    def publish() -> int:
        plan = layout(next(versions), flat.describe(tensors.items(), torch.bfloat16), CHUNK_BYTES)
        draft = segment.begin(plan)
        began = time.perf_counter()
        flat.gather(tensors.items(), plan, draft.buffer())
        stalls.append(time.perf_counter() - began)
        draft.seal([checksum(draft.chunk(index)) for index in range(plan.chunks)])
        segment.commit(draft)
        return plan.total_bytes

    stalls: list[float] = []
    nbytes = max(publish() for _ in range(TIMES + 1))
    return statistics.median(stalls[1:]), nbytes


def _generation(plan: Plan, folder: Path, segment: Path, seed: int) -> tuple[float, float]:
    """Seconds of a load, and of a decode step of `plan.batch` responses, by the reference engine."""
    version = TIMES + 1
    engine = ReferenceEngine(
        EngineSettings(folder, segment, max_model_len=1024, max_running=plan.batch, kv_cache_bytes=4 << 30)
    )
    load = _median(lambda: engine.load(version))
    rng = random.Random(seed)
    for number in range(plan.batch):
        prompt = tuple(rng.randrange(plan.vocabulary) for _ in range(32))
        engine.add(EngineRequest(str(number), prompt, plan.generated, temperature=0.0))
    steps = []
    while engine.busy:
        began = time.perf_counter()
        if len(engine.step()) == plan.batch:
            steps.append(time.perf_counter() - began)
    engine.close()
    return load, statistics.median(steps)


def _switching(plan: Plan, folder: Path, segment: Path, seed: int) -> engine_switch.Switches:
    """Switch between two engines, each in a process of its own on this GPU."""
    longest = plan.context + 2 * TIMES + 2  # Each switch makes a token of each response.
    settings = EngineSettings(folder, segment, max_model_len=longest, max_running=plan.batch, kv_cache_bytes=4 << 30)
    rng = random.Random(seed)
    requests = [
        EngineRequest(
            str(number), tuple(rng.randrange(plan.vocabulary) for _ in range(plan.context)), longest - plan.context,
            temperature=0.0,
        )
        for number in range(plan.batch)
    ]  # fmt: skip
    return engine_switch.measure(settings, TIMES + 1, requests, times=TIMES + 1, devices=["0"])


def _locked_load(segment: Path) -> float:
    """Seconds to page-lock the version in a segment for the device, to copy it there, and to unlock it."""
    runtime = torch.cuda.cudart()
    descriptor = os.open(segment / "current", os.O_RDWR)
    nbytes = os.fstat(descriptor).st_size
    there = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def load() -> None:
        mapping = mmap.mmap(descriptor, nbytes)
        here = torch.frombuffer(mapping, dtype=torch.uint8)
        torch.cuda.check_error(runtime.cudaHostRegister(here.data_ptr(), nbytes, READ_ONLY))
        there.copy_(here)
        torch.cuda.check_error(runtime.cudaHostUnregister(here.data_ptr()))

    try:
        return _median(load)
    finally:
        os.close(descriptor)


def _limits() -> tuple[float, float, float]:
    """Operations a second of a bfloat16 product; GB/s from the device to page-locked memory, and back."""
    left, right = (torch.randn(SQUARE, SQUARE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * SQUARE**3 / _median(lambda: left @ right)
    there = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    here = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    down = there.nbytes / GIGA / _median(lambda: here.copy_(there))
    return flops, down, there.nbytes / GIGA / _median(lambda: there.copy_(here))


def _median(work: Callable[[], object]) -> float:
    """Seconds of `work`."""
    seconds = []
    for _ in range(TIMES + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])
