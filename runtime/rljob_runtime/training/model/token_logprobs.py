"""Token logprobs: computes log probabilities of tokens from logits, some rows at a time.

A row of 16,384 tokens has 10 GB of fp32 logits at a vocabulary of 150,000. A plain log-softmax keeps several tensors of
that size until the backward pass ends. This one keeps only the logits in the model's format, and their gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch
from torch import Tensor

CHUNK_VALUES = 1 << 25
"""Logits that are converted to the wide format at a time: 128 MiB of fp32."""


class Entropy(Enum):
    """Whether the entropy of each distribution is computed, and whether it carries a gradient."""

    NONE = 0
    VALUE = 1
    WITH_GRADIENT = 2


def token_logprobs(
    logits: Tensor,
    rows: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    dtype: torch.dtype,
    entropy: Entropy = Entropy.VALUE,
) -> tuple[Tensor, Tensor]:
    """Compute the log probability of target n in row `rows[n]` of `logits` over the temperature, and the row's entropy.

    `logits` is [U, vocabulary]; both results are [N] in `dtype`. Without entropy the second result is empty.
    """
    logprobs, spread = _TokenLogprobs.apply(logits, rows, targets, temperature, dtype, entropy)  # type: ignore[no-untyped-call]
    return logprobs, spread if entropy is Entropy.NONE else spread[rows]


def _chunks(logits: Tensor) -> Iterator[slice]:
    rows, vocabulary = logits.shape
    size = max(1, CHUNK_VALUES // vocabulary)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


class _TokenLogprobs(torch.autograd.Function):
    """Autograd function of `token_logprobs`.

    `spread` is the entropy of each row, [U], or empty.
    """

    @staticmethod
    def forward(
        context: Any,
        logits: Tensor,
        rows: Tensor,
        targets: Tensor,
        temperature: float,
        dtype: torch.dtype,
        entropy: Entropy,
    ) -> tuple[Tensor, Tensor]:
        norm = torch.empty(len(logits), dtype=dtype, device=logits.device)
        spread = norm.new_empty(0) if entropy is Entropy.NONE else torch.empty_like(norm)
        for chunk in _chunks(logits):
            wide = logits[chunk].to(dtype) / temperature
            norm[chunk] = wide.logsumexp(dim=-1)
            if entropy is not Entropy.NONE:
                spread[chunk] = norm[chunk] - ((wide - norm[chunk, None]).exp_().mul_(wide)).sum(dim=-1)
        context.save_for_backward(logits, rows, targets, norm, spread)
        context.temperature = temperature
        context.entropy_gradient = entropy is Entropy.WITH_GRADIENT
        if not context.entropy_gradient:
            context.mark_non_differentiable(spread)
        return logits[rows, targets].to(dtype) / temperature - norm[rows], spread

    @staticmethod
    def backward(context: Any, gradient: Tensor, of_entropy: Tensor) -> tuple[Tensor | None, ...]:
        """Compute d logprob[n] / d logits[rows[n]] = (one at the target - softmax) / temperature.

        The entropy H of a row with probabilities p has d H / d logits = -p (log p + H) / temperature.
        The targets of a row are added in the wide format: where the model is certain of a token, the two terms nearly
        cancel.
        """
        logits, rows, targets, norm, spread = context.saved_tensors
        gradient = gradient / context.temperature
        weight = torch.zeros_like(norm).index_add_(0, rows, gradient)
        result = torch.empty_like(logits)
        for chunk in _chunks(logits):
            logs = logits[chunk].to(norm.dtype) / context.temperature - norm[chunk, None]
            if context.entropy_gradient:
                bend = (logs + spread[chunk, None]).mul_(of_entropy[chunk, None] / context.temperature)
                wide = logs.exp_().mul_(bend.add_(weight[chunk, None]).neg_())
            else:
                wide = logs.exp_().mul_(-weight[chunk, None])
            # Targets of other rows add zero. Selecting them would wait for the device.
            own = (rows >= chunk.start) & (rows < chunk.stop)
            places = (rows - chunk.start).clamp_(0, len(wide) - 1), targets
            wide.index_put_(places, torch.where(own, gradient, 0.0), accumulate=True)
            result[chunk] = wide
        return result, None, None, None, None, None
