"""A tiny Llama and groups of made-up responses, small enough to train in milliseconds."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rljob_runtime.protocols import Chain, ContributeReport, ContributionReceipt, PublishReport, TrainReport
from rljob_runtime.protocols.trajectory import FinishReason, Group, PromptKey, Response, ScoredResponse, TrajectoryKey
from rljob_runtime.training.batch.delivery import Progress, plan_contribute, plan_train
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.optimizer import MasterOptimizer, Update, gather_full
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.pretrained import load_model
from rljob_runtime.training.ranks.group import TrainerGroup
from rljob_runtime.training.ranks.rank import TrainerRank
from rljob_runtime.training.step.contribution import Contribution
from rljob_runtime.training.step.learner import Learner

T = TypeVar("T")

VOCABULARY = 37


def keep_norms_precise(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' norms compute in fp32 whatever the weights are in: with them no two programs agree to 1e-12."""

    def forward(self: LlamaRMSNorm, hidden: torch.Tensor) -> torch.Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden * torch.rsqrt(variance + self.variance_epsilon))

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)


def tiny_config(**overrides: Any) -> LlamaConfig:
    settings: dict[str, Any] = {
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


def save_tiny_model(folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(tiny_config(**overrides)).double()
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
            finish_reason=FinishReason.LENGTH if length == max_length else FinishReason.STOP,
            replica="r",
        )
        scored.append(ScoredResponse(response, rng.choice([0.0, 0.1, 1.0])))
    tokens = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 7)))
    return Group(prompt, tokens, tuple(scored))


def make_groups(seed: int, count: int, responses: int = 4, **settings: int) -> list[Group]:
    rng = random.Random(seed)
    return [make_group(rng, index, responses, **settings) for index in range(count)]


def make_learner(folder: Path, config: TrainingConfig, *, reference: Path | None = None) -> LoneLearner:
    dtype = torch.float64 if config.dtype == "float64" else torch.float32

    def policy(path: Path) -> Policy:
        model = load_model(path, dtype=dtype)
        return Policy(model, temperature=config.temperature, autocast=config.autocast("cpu"))

    learning = policy(folder)
    return LoneLearner(
        learning,
        MasterOptimizer(learning.model, config),
        config,
        reference=policy(reference or folder) if config.kl_coefficient else None,
    )


def save_tokenizer(folder: Path) -> None:
    """A tokenizer with a word for every token, so that the folder is a whole model folder."""
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t1")
    tokenizer.save_pretrained(folder)


class LoneLearner(Learner):
    """Of one rank, given whole groups: they come to it as deliveries, as a trainer's do."""

    def contribute_early(  # type: ignore[override]
        self, step: int, groups: Sequence[Group]
    ) -> tuple[int, int]:
        delivery, (shares,) = plan_contribute(self._progress(step), step, groups, ranks=1)
        return super().contribute_early(step, delivery, shares)

    def train(self, step: int, groups: Sequence[Group]) -> TrainReport:  # type: ignore[override]
        delivery, (shares,) = plan_train(self._progress(step), step, groups, ranks=1)
        return super().train(step, delivery, shares)

    def sums_of(self, step: int, groups: Sequence[Group]) -> Contribution:
        delivery, ((share,),) = plan_contribute(Progress(step - 1, {}, self.config.row_rules), step, groups, ranks=1)
        return self.contribute(step, delivery.groups, share)

    def _progress(self, step: int) -> Progress:
        return Progress(step - 1, self.held_groups(step), self.config.row_rules)


class LoneRank(TrainerRank):
    """The only one of its group, which brings it the groups of a step."""

    def contribute(  # type: ignore[override]
        self, term: int, step: int, groups: Sequence[Group]
    ) -> ContributeReport:
        return self._through_the_group(lambda group: group.contribute(term, step, groups))

    def accept(  # type: ignore[override]
        self, term: int, receipt: ContributionReceipt, groups: Sequence[Group]
    ) -> ContributeReport:
        return self._through_the_group(lambda group: group.accept(term, receipt, groups))

    def train(  # type: ignore[override]
        self, term: int, step: int, groups: Sequence[Group]
    ) -> TrainReport:
        return self._through_the_group(lambda group: group.train(term, step, groups))

    def _through_the_group(self, command: Callable[[TrainerGroup], Coroutine[Any, Any, T]]) -> T:
        with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop of its own
            return thread.submit(asyncio.run, command(TrainerGroup([_InThisThread(self)]))).result()


class _InThisThread:
    host = "127.0.0.1"

    def __init__(self, rank: TrainerRank) -> None:
        self._rank = rank

    async def call(self, method: str, *arguments: Any) -> Any:
        return getattr(TrainerRank, method)(self._rank, *arguments)

    async def put(self, value: Any) -> Any:
        return value


class FakePublisher:
    """Keeps what it is given instead of shipping it."""

    def __init__(self) -> None:
        self.published: list[int] = []
        self.shipped: list[Chain] = []
        self.weights: dict[str, torch.Tensor] = {}

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> PublishReport:
        if version not in self.published:
            self.published.append(version)
            self.weights = {name: gather_full(tensor.detach()).clone() for name, tensor in tensors.items()}
        return PublishReport(version, sum(t.nbytes for t in self.weights.values()), 0.0)

    def ship(self, term: int, chain: Chain) -> None:
        self.shipped.append(chain)

    def close(self) -> None:
        pass


def watched(learner: Learner) -> list[dict[str, Tensor]]:
    """The gradients that the optimizer is given, copied before its clip touches them."""
    seen: list[dict[str, Tensor]] = []
    update = learner.optimizer.update

    def note(gradients: Mapping[str, Tensor], step: int) -> Update:
        seen.append({name: gradient.clone() for name, gradient in gradients.items()})
        return update(gradients, step)

    learner.optimizer.update = note  # type: ignore[method-assign]
    return seen


def figures(report: TrainReport) -> dict[str, float]:
    """The numbers of a report, with the metrics of the loss among them. What was not computed is absent."""
    numbers = dataclasses.asdict(report)
    numbers |= {f"metrics.{name}": value for name, value in numbers.pop("metrics").items()}
    return {name: value for name, value in numbers.items() if value is not None}


def changed(group: Group) -> Group:
    """The same prompt with another reward of its first response."""
    first, *rest = group.responses
    return dataclasses.replace(group, responses=(dataclasses.replace(first, reward=first.reward + 2.0), *rest))
