"""Estimates: avg@k and pass@k of an evaluation, each with its standard error.

Both are means over prompts. The responses to one prompt depend on each other through it, so an error is that of the
mean of one value a prompt (clustered by prompt), and not that of all responses.

A failed response is missing: its reward is unknown, and 0 would be the reward of a wrong answer. An average takes a
prompt's remaining responses. pass@k takes prompts with at least k remaining responses. A prompt without enough of them
is missing, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb, fsum, sqrt

PASS_REWARD = 1.0
"""The reward from which a response passes, unless the spec names another: a right answer under one rule of weight 1."""
TOLERANCE = 1e-9
"""How far below it a response still passes: 0.6 + 0.3 + 0.1 is less than 1 in floating point."""


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts.

    `value` is None without prompts, `error` (the standard error) with fewer than two. `prompts` are those of the mean,
    `missing` those without enough responses.
    """

    value: float | None
    error: float | None
    prompts: int
    missing: int


def average_at_k(rewards: Iterable[Sequence[float]]) -> Estimate:
    """Estimate the mean reward of a response (avg@k), from the rewards of each prompt's responses."""
    return _mean([fsum(of_prompt) / len(of_prompt) if of_prompt else None for of_prompt in rewards])


def pass_at_k(passed: Iterable[Sequence[bool]], k: int) -> Estimate:
    """Estimate the chance that at least one of `k` responses passes, from each prompt's n responses, without bias.

    Raises `ValueError` for k below 1.
    """
    if k < 1:
        raise ValueError(f"pass@{k}: k is at least 1")
    counts = [(len(of_prompt), sum(of_prompt)) for of_prompt in passed]
    return _mean([chance_of_pass(n, right, k) if n >= k else None for n, right in counts])


def chance_of_pass(n: int, right: int, k: int) -> float:
    """Return 1 - C(n - right, k) / C(n, k): the share of the k-subsets of n responses with a right one. k <= n.

    Integers make it exact up to its last bit; products of floats lose small chances.
    """
    subsets = comb(n, k)
    return (subsets - comb(n - right, k)) / subsets


def passes(reward: float, threshold: float = PASS_REWARD) -> bool:
    """Return whether a response with this reward passes."""
    return reward >= threshold - TOLERANCE


def default_ks(responses: int) -> tuple[int, ...]:
    """Return the k of pass@k for prompts with so many responses: powers of two, and all of them."""
    powers = [1 << place for place in range(responses.bit_length())]
    return tuple(sorted({*powers, responses}))


def _mean(values: Sequence[float | None]) -> Estimate:
    """Return the mean of one value a prompt; None is a missing prompt."""
    known = [value for value in values if value is not None]
    count, missing = len(known), len(values) - len(known)
    if not known:
        return Estimate(None, None, 0, missing)
    mean = fsum(known) / count
    if count == 1:
        return Estimate(mean, None, 1, missing)
    variance = fsum((value - mean) ** 2 for value in known) / (count - 1)
    return Estimate(mean, sqrt(variance / count), count, missing)
