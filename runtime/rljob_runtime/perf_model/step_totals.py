"""Step totals: what steps of an engine computed and took, as sums.

The latency model is linear in these, so the sums of any steps are as good for a fit as each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add, attrgetter, sub


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Sums over steps; they only grow."""

    steps: int = 0
    sequences: int = 0
    """Requests that got a token."""
    context: int = 0
    """Their tokens in the KV cache, the new ones included."""
    prompt_tokens: int = 0
    """Tokens that were computed before a new one: of prompts, and of requests that were preempted or moved."""
    seconds: float = 0.0
    prompt_squares: int = 0
    """Σ(L² − L0²) of these: each request grew from L0 to L tokens in the KV cache."""

    def __add__(self, other: StepTotals) -> StepTotals:
        return StepTotals(*map(add, _sums(self), _sums(other)))

    def __sub__(self, other: StepTotals) -> StepTotals:
        return StepTotals(*map(sub, _sums(self), _sums(other)))


_sums = attrgetter(*(field.name for field in fields(StepTotals)))
"""Sixty times quicker than `astuple`, which copies each number: engines are polled many times a second."""

NO_STEPS = StepTotals()
