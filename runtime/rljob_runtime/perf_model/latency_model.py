"""Latency model: seconds of one engine step. The roofline predicts it, a profile measures it.

    decode   step(B, T) = base(B) + c·T               a token for each of B sequences, T tokens of context in all
    prefill  p0 + p1·n + p2·Σ(L² − L0²)               n new tokens; each sequence grows from L0 to L in the KV cache

`base` is piecewise linear in B: the roofline's ridge is one kink, a profile has one at each measured batch size (PAT
§4.2 interpolates so, and finds the step linear in T at fixed B, Fig. 6a). The squares are causal attention (PAT eq. 3).

While B is constant, T grows by B per step, so n steps cost n·base(B) + c·(n·T + B·n·(n−1)/2). Because of this sum and
its inverse the engine simulator need not simulate single steps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True)
class LatencyModel:
    """Seconds of a step for one model on one layout.

    `knots`: (batch, seconds) of `base`, by rising batch. It is constant below the first; beyond the last it continues
    with the last slope."""

    knots: tuple[tuple[float, float], ...]
    context_token_seconds: float
    """c: reading the KV of one token."""
    prefill_seconds: float
    """p0: reading the weights, launches, latencies."""
    prefill_token_seconds: float
    """p1: matrix products per token."""
    prefill_square_seconds: float
    """p2: attention per squared token."""

    def __post_init__(self) -> None:
        batches = [batch for batch, _ in self.knots]
        if not batches or any(b <= a for a, b in pairwise(batches)):
            raise ValueError(f"knots: batch sizes {batches} are not rising")
        if any(not (seconds > 0 and math.isfinite(seconds)) for _, seconds in self.knots):
            raise ValueError(f"knots: {self.knots} has a step that does not take time")
        for name in ("context_token", "prefill", "prefill_token", "prefill_square"):
            value = getattr(self, f"{name}_seconds")
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}_seconds: {value} must be a number of seconds, 0 or more")

    def scaled(self, factor: float) -> LatencyModel:
        """Return a model whose decode steps take `factor` times as long, more than 0."""
        return replace(
            self,
            knots=tuple((batch, factor * seconds) for batch, seconds in self.knots),
            context_token_seconds=factor * self.context_token_seconds,
        )

    def base(self, batch: float) -> float:
        """Return the seconds of a step of `batch` sequences without context."""
        knots = self.knots
        right = min(bisect_right(knots, (batch, math.inf)), len(knots) - 1)
        if right == 0 or batch <= knots[0][0]:
            return knots[0][1]
        (b0, a0), (b1, a1) = knots[right - 1], knots[right]
        return a0 + (a1 - a0) * (batch - b0) / (b1 - b0)

    def step(self, batch: int, context_tokens: float) -> float:
        """Return the seconds of one decode step."""
        return self.base(batch) + self.context_token_seconds * context_tokens

    def decode(self, batch: int, context_tokens: float, steps: float) -> float:
        """Return the seconds of `steps` consecutive decode steps, the first over `context_tokens`."""
        grown = steps * context_tokens + batch * steps * (steps - 1) / 2
        return steps * self.base(batch) + self.context_token_seconds * grown

    def steps_within(self, batch: int, context_tokens: float, seconds: float) -> int:
        """Return the number of decode steps that end within `seconds`: the inverse of `decode`.

        Requires at least one token per sequence."""
        half = self.context_token_seconds * batch / 2
        first = self.step(batch, context_tokens) - half
        # The root of half·n² + first·n = seconds, in the form that does not cancel and knows half = 0.
        steps = int(2 * seconds / (first + math.sqrt(first * first + 4 * half * seconds)))
        while self.decode(batch, context_tokens, steps + 1) <= seconds:
            steps += 1
        while steps > 0 and self.decode(batch, context_tokens, steps) > seconds:
            steps -= 1
        return steps

    @property
    def square_tokens(self) -> float:
        """Seconds of a squared token over those of a token; 0 if tokens take none."""
        return self.prefill_square_seconds / self.prefill_token_seconds if self.prefill_token_seconds else 0.0

    def prefill(self, tokens: float, squares: float) -> float:
        """Return the seconds of one prefill pass. `tokens`: to compute, over all sequences; `squares`: Σ(L² − L0²)."""
        return self.prefill_seconds + self.prefill_token_seconds * tokens + self.prefill_square_seconds * squares
