"""The scoring rules of a job, as plain values that travel to the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_api.learning import Reward, RewardKind

BUILT_IN = {
    RewardKind.MATH: "rljob_runtime.rewards.scorers:math",
    RewardKind.REASONING_GYM: "rljob_runtime.rewards.scorers:reasoning_gym",
}
"""Kinds with a scorer of ours; Python names its own."""


class InvalidReward(ValueError):
    """A rule that cannot be used; the message says which and why."""


@dataclass(frozen=True)
class Rule:
    """`function` ("module:function") is called with (prompt, response, **config); its value counts `weight` times."""

    name: str
    function: str
    weight: float = 1.0
    config: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 30.0
    """Bound of one call. What takes longer is our failure: the worker is killed and the sample aborted."""


def rules_of(rewards: Sequence[Reward]) -> tuple[Rule, ...]:
    """The rules of `spec.rewards`. Raises `InvalidReward` for a kind that is not there yet."""
    rules = []
    for position, reward in enumerate(rewards):
        function = reward.function if reward.kind is RewardKind.PYTHON else BUILT_IN.get(reward.kind)
        if function is None:
            raise InvalidReward(
                f"spec.rewards[{position}] {reward.name}: kind {reward.kind.value} without a function cannot be used; "
                "Math, ReasoningGym, or Python with function: module:function would be right"
            )
        rules.append(Rule(reward.name, function, reward.weight, dict(reward.config), reward.timeout.max_seconds))
    return tuple(rules)
