"""A tiny Llama and groups of made-up responses, small enough to train in milliseconds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rljob_runtime.coordinator.protocols import Chain, PublishReport
from rljob_runtime.scheduling.trajectory import (
    FinishReason,
    Group,
    PromptKey,
    Response,
    ScoredResponse,
    TrajectoryKey,
)
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.learner import Learner
from rljob_runtime.training.model import Policy, load_model
from rljob_runtime.training.optimizer import MasterOptimizer, whole

VOCABULARY = 37


def keep_norms_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' norms compute in fp32 whatever the weights are in: with them no two programs agree to 1e-12."""

    def forward(self: LlamaRMSNorm, hidden: torch.Tensor) -> torch.Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden * torch.rsqrt(variance + self.variance_epsilon))

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)


def tiny_config(**overrides: object) -> LlamaConfig:
    settings: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
    }
    return LlamaConfig(**(settings | overrides))


def save_tiny_model(folder: Path, *, seed: int = 0, **overrides: object) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(tiny_config(**overrides)).to(torch.float64)
        # A fresh model's norm scales are all one: give every parameter something to be wrong about.
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def make_group(rng: random.Random, index: int, responses: int, *, max_length: int = 9) -> Group:
    prompt = PromptKey(0, index)
    scored = []
    for sample in range(responses):
        length = rng.randint(1, max_length)
        response = Response(
            key=TrajectoryKey(prompt, sample),
            attempt=0,
            weight_version=0,
            token_ids=tuple(rng.randrange(VOCABULARY) for _ in range(length)),
            logprobs=tuple(-rng.uniform(0.5, 5.0) for _ in range(length)),
            finish_reason=FinishReason.STOP,
            replica="r",
        )
        scored.append(ScoredResponse(response, rng.choice([0.0, 0.1, 1.0])))
    tokens = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 7)))
    return Group(prompt, tokens, tuple(scored))


def make_groups(seed: int, count: int, responses: int = 4, **settings: int) -> list[Group]:
    rng = random.Random(seed)
    return [make_group(rng, index, responses, **settings) for index in range(count)]


def make_learner(folder: Path, config: TrainingConfig, *, reference: Path | None = None) -> Learner:
    dtype = torch.float64 if config.dtype == "float64" else torch.float32

    def policy(path: Path) -> Policy:
        model = load_model(path, dtype=dtype)
        return Policy(model, temperature=config.temperature, autocast=config.dtype == "bfloat16")

    learning = policy(folder)
    return Learner(
        learning,
        MasterOptimizer(learning.model, config),
        config,
        reference=policy(reference or folder) if config.kl_coefficient else None,
    )


def save_tokenizer(folder: Path) -> None:
    """A tokenizer with a word for every token, so that the folder is a whole model folder."""
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t1").save_pretrained(folder)


class FakePublisher:
    """Keeps what it is given instead of shipping it."""

    def __init__(self) -> None:
        self.published: list[int] = []
        self.shipped: list[Chain] = []
        self.weights: dict[str, torch.Tensor] = {}

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> PublishReport:
        if version not in self.published:
            self.published.append(version)
            self.weights = {name: whole(tensor.detach()).clone() for name, tensor in tensors.items()}
        return PublishReport(version, sum(t.nbytes for t in self.weights.values()), 0.0)

    def ship(self, term: int, chain: Chain) -> None:
        self.shipped.append(chain)

    def close(self) -> None:
        pass
