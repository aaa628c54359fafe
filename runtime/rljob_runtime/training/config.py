"""The settings of the trainer, apart from the API: plain values, checked once, that tests can make without a spec."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from rljob_api.spec_training import Mode
from rljob_runtime.training.row_rules import RowRules

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec


class Aggregation(StrEnum):
    """What one unit of the mean is: every loss token weighs the same, or every response does."""

    TOKEN_MEAN = "TokenMean"
    SEQUENCE_MEAN = "SequenceMean"


DTYPES = ("bfloat16", "float16", "float32", "float64")
"""What weights may be published in. bfloat16 computes under autocast; float16 weights compute in fp32, since fp16
gradients would need loss scaling; float64 is for tests."""


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that shapes an update. Raises `ValueError` naming the field when one is out of range."""

    dtype: str = "bfloat16"
    """Weights are rounded to it before every computation, as they are published; the master copy stays fp32."""
    temperature: float = 1.0
    """The sampler's; logits are divided by it, so that both sides speak of the same distribution."""
    learning_rate: float = 1e-6
    warmup_steps: int = 0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    adam_epsilon: float = 1e-8
    gradient_clip: float | None = 1.0
    """Largest global gradient norm after normalisation; None leaves it."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    """Policy ratio is held inside [1 - clip_low, 1 + clip_high] (clip-higher when the second is larger)."""
    importance_cap: float | None = None
    """A token weighs the trainer's probability over the sampler's, cut here, and the clip is around the weights at the
    start of the step. None: no weight, and the clip is around the sampler's."""
    kl_coefficient: float = 0.0
    """Weight of the KL divergence to the initial model; 0 loads no reference model."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    advantages_by_std: bool = True
    minibatches: int = 1
    """Optimizer updates a step, each over an equal share of the groups."""
    max_tokens_per_microbatch: int = 16_384
    """Budget of one forward and backward pass, in input tokens after prompt sharing."""
    gradient_checkpointing: bool = False
    """Recompute activations layer by layer in the backward pass: less memory, a third more work."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        for name in ("temperature", "learning_rate", "adam_epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("warmup_steps", "weight_decay", "clip_low", "clip_high", "kl_coefficient"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for name in ("minibatches", "max_tokens_per_microbatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.importance_cap is not None and not 1 <= self.importance_cap < math.inf:
            raise ValueError(f"importance_cap is {self.importance_cap}; it must be 1 or more, or None")
        if self.gradient_clip is not None and not self.gradient_clip > 0:
            raise ValueError(f"gradient_clip is {self.gradient_clip}; it must be above 0, or None")

    @property
    def compute_dtype(self) -> torch.dtype:
        """The format that the model's parameters, gradients and master weights are stored in."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def autocast(self) -> bool:
        """Whether matrix products run in bfloat16."""
        return self.dtype == "bfloat16"

    @property
    def row_rules(self) -> RowRules:
        """How whoever sends groups plans their rows."""
        return RowRules(self.max_tokens_per_microbatch, self.minibatches, self.advantages_by_std)

    @classmethod
    def from_spec(cls, spec: RLJobSpec) -> TrainingConfig:
        """The trainer's settings of a job."""
        algorithm = spec.algorithm
        return cls(
            dtype=spec.model.dtype.value,
            temperature=algorithm.temperature,
            learning_rate=algorithm.learning_rate,
            warmup_steps=algorithm.warmup_rounds,
            weight_decay=algorithm.weight_decay,
            betas=(algorithm.betas[0], algorithm.betas[1]),
            gradient_clip=algorithm.gradient_clip,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            importance_cap=algorithm.importance_cap if spec.mode is Mode.ASYNCHRONOUS else None,
            kl_coefficient=algorithm.kl_coefficient,
            aggregation=Aggregation(algorithm.loss_aggregation.value),
            advantages_by_std=algorithm.normalize_advantages_by_std,
            minibatches=algorithm.minibatches,
            max_tokens_per_microbatch=algorithm.max_tokens_per_microbatch,
            seed=spec.data.seed,
        )
