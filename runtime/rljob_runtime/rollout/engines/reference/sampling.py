"""Sampling: draws tokens by inverse transform from counter-based uniform numbers.

The number for a token depends on (seed, position) only. A seeded response is therefore the same in any batch, after a
preemption, and when another engine continues it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rljob_runtime.rollout.engines.base import EngineRequest


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """Return one number in [0, 1) for each (seed, position): two rounds of the splitmix64 finaliser, 53 bits kept."""
    seed = np.array([s & 0xFFFFFFFFFFFFFFFF for s in seeds], dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = _mix(
            _mix(seed + np.uint64(0x9E3779B97F4A7C15)) + (position + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
        )
    drawn: np.ndarray = np.multiply(mixed >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return drawn


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def sample(
    logits: torch.Tensor, requests: Sequence[EngineRequest], seeds: Sequence[int], positions: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Return tokens and their logprobs for `logits` [rows, vocabulary], a row for each request.

    A row is divided by its temperature. At temperature 0 the largest logit wins, with the logprob of temperature 1.
    The logprobs are those over all tokens, whatever the request leaves out.
    """
    device = logits.device
    scale = torch.tensor([r.temperature or 1.0 for r in requests], device=device)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    # Sum in double precision: in fp32 a vocabulary of 50k tokens loses the tail of the distribution.
    probabilities = logprobs.double().exp()
    for row, request in enumerate(requests):
        if request.truncates:
            probabilities[row] *= kept_tokens(probabilities[row], request.top_k, request.top_p, request.min_p)
    cumulative = probabilities.cumsum(-1)
    draws = torch.from_numpy(uniforms(seeds, positions)).to(device)
    drawn = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True)[:, 0]
    greedy = torch.tensor([r.temperature <= 0 for r in requests], device=device)
    tokens = torch.where(greedy, logprobs.argmax(-1), drawn.clamp_max(logits.shape[-1] - 1))
    return tokens.tolist(), logprobs.gather(-1, tokens[:, None])[:, 0].tolist()


def kept_tokens(probabilities: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Return which tokens of one distribution [vocabulary] are left, in vLLM's order: min p, then top k, then top p.

    Top p counts the probability of what the other two leave as 1. The most probable token is always left.
    """
    order = probabilities.argsort(descending=True, stable=True)
    falling = probabilities[order]
    falling = falling * (falling >= min_p * falling[0])
    if top_k:
        falling[top_k:] = 0
    before = falling.cumsum(-1) - falling
    left = (falling > 0) & (before < top_p * falling.sum())
    left[0] = True
    return torch.zeros_like(left).scatter(0, order, left)
