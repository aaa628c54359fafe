"""Spec advantages: the advantages of a job's groups, for samples that people read. It imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rljob_api.spec import RLJobSpec
from rljob_runtime.training.algorithm.advantage import group_advantages
from rljob_runtime.training.presets import parts_of


def advantages_of(spec: RLJobSpec) -> Callable[[Sequence[float]], Sequence[float | None]]:
    """Return the function from a group's rewards to its advantages, as the trainer computes them.

    They are None where rewards alone do not give them: with an own function, and with a penalty of overlong responses.
    """
    if spec.algorithm.advantage is not None or spec.algorithm.overlong.penalty_tokens is not None:
        return lambda rewards: [None] * len(rewards)
    parts = parts_of(spec.algorithm)
    return partial(group_advantages, by_std=parts.normalize_advantages_by_std, baseline=parts.advantage_baseline)
