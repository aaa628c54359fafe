"""Trainer settings: plain values that shape an update, independent of the API.

The constructor checks every value once. Tests build the settings without a spec.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rljob_api.spec.algorithm import (
    AdvantageBaseline,
    Clipping,
    ImportanceRatio,
    KLPlacement,
    LossAggregation,
    ScheduleKind,
)
from rljob_api.spec.training import Mode
from rljob_runtime.models.product_dtype import product_dtype
from rljob_runtime.training.presets import parts_of
from rljob_runtime.training.row_rules import AdvantageRules, RowRules

if TYPE_CHECKING:
    from rljob_api.spec import RLJobSpec


DTYPES = ("bfloat16", "float16", "float32", "float64")
"""Formats of published weights. bfloat16 computes under autocast where the device has fast products of it. float16
weights compute in fp32, because fp16 gradients need loss scaling. float64 is for tests."""


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of an update.

    The constructor raises `ValueError`, which names the field, for a value out of range.
    """

    dtype: str = "bfloat16"
    """Format of the published weights. Every computation uses weights rounded to it; the master copy stays in fp32."""
    temperature: float = 1.0
    """Sampling temperature. The trainer divides its logits by it, so trainer and sampler use the same distribution."""
    learning_rate: float = 1e-6
    warmup_steps: int = 0
    schedule: ScheduleKind = ScheduleKind.CONSTANT
    """Schedule of the learning rate after warm-up."""
    decay_steps: int = 0
    """Step in which a falling learning rate reaches its final value."""
    final_factor: float = 0.0
    """Final learning rate, as a share of `learning_rate`."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    adam_epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0
    """Largest global gradient norm after normalisation. None disables the clip."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    """The policy ratio is clipped to [1 - clip_low, 1 + clip_high]. A larger clip_high is clip-higher (DAPO)."""
    importance_cap: float | None = None
    """Cap of the importance weight: the trainer's probability of a token over the sampler's. With a cap, the clip is
    around the weights at the start of the step. None disables the weight, and the clip is around the sampler's."""
    importance_ratio: ImportanceRatio = ImportanceRatio.TOKEN
    clipping: Clipping = Clipping.OBJECTIVE
    kl_coefficient: float = 0.0
    """Weight of the KL divergence from the initial model. 0 loads no reference model."""
    kl_placement: KLPlacement = KLPlacement.LOSS
    entropy_coefficient: float = 0.0
    aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    longest_response: int = 1
    """Tokens of the longest response: the divisor of FixedLength and the limit of overlong responses."""
    advantages_by_std: bool = True
    advantage_baseline: AdvantageBaseline = AdvantageBaseline.GROUP_MEAN
    mask_overlong: bool = False
    """Whether responses that were cut at the limit stay out of the loss."""
    overlong_penalty_tokens: int | None = None
    """Tokens before the limit over which the penalty of a response falls to -1. None for no penalty."""
    advantage_function: str | None = None
    """module:function of the user that computes advantages. None for the baseline above."""
    loss_function: str | None = None
    """module:function of the user that computes the loss. None for the parts above."""
    minibatches: int = 1
    """Optimizer updates in a step. Each uses an equal share of the groups."""
    max_tokens_per_microbatch: int = 16_384
    """Token budget of one forward and backward pass, in input tokens after prompt sharing."""
    gradient_checkpointing: bool = False
    """Recompute activations layer by layer in the backward pass. This saves memory and costs a third more
    computation."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        for name in ("temperature", "learning_rate", "adam_epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in (
            "warmup_steps", "weight_decay", "clip_low", "clip_high", "kl_coefficient", "entropy_coefficient",
            "final_factor",
        ):  # fmt: skip
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if self.schedule is not ScheduleKind.CONSTANT and self.decay_steps <= self.warmup_steps:
            raise ValueError(f"decay_steps is {self.decay_steps}; it must be above warmup_steps, {self.warmup_steps}")
        for name in ("minibatches", "max_tokens_per_microbatch", "longest_response"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.importance_cap is not None and not 1 <= self.importance_cap < math.inf:
            raise ValueError(f"importance_cap is {self.importance_cap}; it must be 1 or more, or None")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm is {self.max_grad_norm}; it must be above 0, or None")

    @property
    def compute_dtype(self) -> torch.dtype:
        """Format of the model's parameters, gradients and master weights."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    def autocast(self, device: str) -> bool:
        """Whether matrix products run in bfloat16 on this device."""
        return product_dtype(self.dtype, device) == "bfloat16"

    @property
    def row_rules(self) -> RowRules:
        """Rules by which a sender plans the rows of its groups."""
        advantages = AdvantageRules(
            self.advantages_by_std,
            self.advantage_baseline,
            self.longest_response,
            self.mask_overlong,
            self.overlong_penalty_tokens,
            self.advantage_function,
        )
        return RowRules(self.max_tokens_per_microbatch, self.minibatches, advantages)

    @classmethod
    def from_spec(cls, spec: RLJobSpec) -> TrainingConfig:
        """Build the trainer settings of a job."""
        algorithm = spec.algorithm
        parts, schedule = parts_of(algorithm), algorithm.learning_rate_schedule
        return cls(
            dtype=spec.model.dtype.value,
            temperature=algorithm.temperature,
            learning_rate=algorithm.learning_rate,
            warmup_steps=algorithm.warmup_rounds,
            schedule=schedule.kind,
            decay_steps=schedule.decay_rounds or 0,
            final_factor=schedule.final_factor,
            weight_decay=algorithm.weight_decay,
            betas=(algorithm.betas[0], algorithm.betas[1]),
            adam_epsilon=algorithm.adam_epsilon,
            max_grad_norm=algorithm.max_grad_norm,
            clip_low=parts.clip_low,
            clip_high=parts.clip_high,
            importance_ratio=parts.importance_ratio,
            clipping=parts.clipping,
            importance_cap=algorithm.truncated_importance_sampling.cap if spec.mode is Mode.ASYNCHRONOUS else None,
            kl_coefficient=algorithm.kl_coefficient,
            kl_placement=algorithm.kl_placement,
            entropy_coefficient=algorithm.entropy_coefficient,
            aggregation=parts.loss_aggregation,
            longest_response=spec.data.max_response_tokens,
            advantages_by_std=parts.normalize_advantages_by_std,
            advantage_baseline=parts.advantage_baseline,
            mask_overlong=algorithm.overlong.mask,
            overlong_penalty_tokens=algorithm.overlong.penalty_tokens,
            advantage_function=algorithm.advantage,
            loss_function=algorithm.loss,
            minibatches=algorithm.minibatches,
            max_tokens_per_microbatch=algorithm.max_tokens_per_microbatch,
            seed=spec.data.seed,
        )
