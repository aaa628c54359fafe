"""Master optimizer: AdamW on fp32 master weights; the model computes with their rounded values.

Replicas generate with weights rounded to the published dtype, so the trainer computes with exactly those. After every
update, the master copy is rounded into the model. Updates smaller than a rounding step add up in the master and are not
lost. With a published dtype of fp32, the model is its own master.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rljob_api.spec.algorithm import ScheduleKind
from rljob_runtime.training.config import TrainingConfig


class NonFiniteGradient(ArithmeticError):
    """The gradient holds a NaN or an infinity.

    The update is refused and no weight changes.
    """


@dataclass(frozen=True)
class Update:
    """Result of an update.

    `grad_norm` is the norm of the normalised gradient before the clip.
    """

    grad_norm: float
    learning_rate: float


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Return the learning rate of update `step`, from 1: a linear warm-up, then the schedule.

    A falling rate begins after warm-up and reaches its final value in step `decay_steps`.
    """
    if step < config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    if config.schedule is ScheduleKind.CONSTANT:
        return config.learning_rate
    begin = max(1, config.warmup_steps)
    done = min(1.0, (step - begin) / max(1, config.decay_steps - begin))
    left = 1 - done if config.schedule is ScheduleKind.LINEAR else (1 + math.cos(math.pi * done)) / 2
    return config.learning_rate * (config.final_factor + (1 - config.final_factor) * left)


def gather_full(tensor: Tensor) -> Tensor:
    """Return the full tensor of a sharded one; any other tensor unchanged.

    A collective for sharded tensors.
    """
    full = getattr(tensor, "full_tensor", None)
    return full() if full is not None else tensor


@torch.no_grad()
def round_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Round the weights of a model to `dtype`, in place.

    They keep their stored format.
    """
    for parameter in model.parameters():
        parameter.copy_(parameter.to(dtype))


class MasterOptimizer:
    """Owns the master weights and moments of the parameters of `model`, sharded like these."""

    def __init__(self, model: nn.Module, config: TrainingConfig):
        self.config = config
        self.published = getattr(torch, config.dtype)
        self.compute = dict(model.named_parameters())
        exact = self.published.itemsize >= next(iter(self.compute.values())).dtype.itemsize
        self.master: dict[str, Tensor] = {
            name: parameter if exact else parameter.detach().clone() for name, parameter in self.compute.items()
        }
        # Weight decay skips norm scales and biases.
        decayed = [tensor for tensor in self.master.values() if tensor.ndim >= 2]
        plain = [tensor for tensor in self.master.values() if tensor.ndim < 2]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.adam_epsilon,
            weight_decay=config.weight_decay,
            foreach=False,  # foreach holds the roots of all second moments at the same time on accelerators
        )
        self.round_into_model()

    @torch.no_grad()
    def round_into_model(self) -> None:
        """Round the master weights into the model, as they are published."""
        for name, parameter in self.compute.items():
            if parameter is not self.master[name]:
                parameter.copy_(self.master[name].to(self.published))

    def update(self, gradients: Mapping[str, Tensor], step: int) -> Update:
        """Apply one AdamW step with the normalised `gradients`, clipped by their global norm.

        `gradients` is keyed by parameter name.
        """
        norm = self._clip(gradients)
        rate = learning_rate(self.config, step)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        for name, tensor in self.master.items():
            tensor.grad = gradients[name]
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.round_into_model()
        return Update(norm, rate)

    def skip(self, gradients: Mapping[str, Tensor], step: int) -> Update:
        """Leave weights and moments as they are: the step has no loss token."""
        return Update(0.0, learning_rate(self.config, step))

    def _clip(self, gradients: Mapping[str, Tensor]) -> float:
        tensors = list(gradients.values())
        norm = float(gather_full(torch.nn.utils.get_total_norm(tensors)))
        if not math.isfinite(norm):
            bad = next(
                (name for name, tensor in gradients.items() if not gather_full(tensor).isfinite().all()), "their norm"
            )
            raise NonFiniteGradient(f"the gradient of {bad} is not finite")
        if self.config.max_grad_norm is not None and norm > self.config.max_grad_norm:
            for tensor in tensors:
                tensor.mul_(self.config.max_grad_norm / norm)
        return norm

    def restore(self, updates: int) -> None:
        """Create the moments that exist after `updates` updates.

        Copy a checkpoint into `state()` next, and call `round_into_model` last.
        """
        for tensor in self.master.values():
            self.adamw.state[tensor] = {
                "step": torch.tensor(float(updates)),
                "exp_avg": torch.zeros_like(tensor, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(tensor, requires_grad=False),
            }

    @property
    def updates(self) -> int:
        """Number of updates done."""
        state = next(iter(self.adamw.state.values()), None)
        return int(state["step"]) if state else 0

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return the state of a checkpoint by kind and parameter name: `master`, `exp_avg`, `exp_avg_sq`.

        Moments are absent before the first update.
        """
        kinds: dict[str, dict[str, Tensor]] = {"master": dict(self.master), "exp_avg": {}, "exp_avg_sq": {}}
        for name, tensor in self.master.items():
            for kind in ("exp_avg", "exp_avg_sq"):
                if kind in self.adamw.state[tensor]:
                    kinds[kind][name] = self.adamw.state[tensor][kind]
        return kinds
