"""The scoring rules of a job, as plain values that travel to the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_api.constants import SANDBOX_UNAVAILABLE
from rljob_api.rewards import (
    DEFAULT_PARALLELISM,
    OUR_PACKAGE,
    CodeReward,
    JudgeReward,
    Reward,
    RewardKind,
    RewardTimeout,
)

BUILT_IN = {
    RewardKind.MATH: "rljob_runtime.rewards.builtin:math",
    RewardKind.REASONING_GYM: "rljob_runtime.rewards.builtin:reasoning_gym",
}
"""Kinds with a scorer of ours; Python names its own."""

_EVALUATES_NOTHING = frozenset(
    {"rljob_runtime.rewards.builtin:has_number", "rljob_runtime.rewards.builtin:last_number"}
)
"""Of the functions of ours: they search a text, and hand it to no parser."""


class InvalidReward(ValueError):
    """A rule that cannot be used; the message says which and why."""


class CannotSandbox(InvalidReward):
    """A rule that needs a sandbox, or a confined worker, on a machine that has neither. `reason` is the word for
    programs."""

    reason = SANDBOX_UNAVAILABLE


@dataclass(frozen=True)
class Rule:
    """`function` ("module:function") is called with (prompt, response, **config); its value counts `weight` times."""

    name: str
    function: str
    weight: float = 1.0
    config: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 30.0
    """Bound of one call, less what it waits for a processor. What takes longer is our failure: the worker is killed
    and the sample aborted."""
    least: float = -1e6
    most: float = 1e6
    """Bounds of its value."""
    parallelism: int = DEFAULT_PARALLELISM
    """Calls at a time, together with the rules that share its workers."""

    @property
    def ours(self) -> bool:
        """Whether the function is the runtime's own."""
        return self.function.startswith(OUR_PACKAGE)

    @property
    def confined(self) -> bool:
        """Whether its worker gives up all rights: a text of a model gets evaluated there, and a function of ours needs
        nothing but its arguments."""
        return self.ours and self.function not in _EVALUATES_NOTHING


@dataclass(frozen=True)
class CodeRule:
    """The response's program against its prompt's tests."""

    name: str
    weight: float = 1.0
    settings: CodeReward = field(default_factory=CodeReward)
    timeout: RewardTimeout = field(default_factory=RewardTimeout)


@dataclass(frozen=True)
class JudgeRule:
    """A model's opinion of the response."""

    name: str
    settings: JudgeReward
    weight: float = 1.0
    timeout_seconds: float = 30.0
    """Bound of one request."""


def confined(rules: Sequence[Rule]) -> bool:
    """Whether a worker with these rules gives up all rights once it has loaded them."""
    return all(rule.confined for rule in rules)


AnyRule = Rule | CodeRule | JudgeRule


def rules_of(rewards: Sequence[Reward]) -> tuple[AnyRule, ...]:
    """The rules of `spec.rewards`. Raises `InvalidReward` for one that lacks what its kind needs."""
    return tuple(_rule(f"spec.rewards[{position}] {reward.name}", reward) for position, reward in enumerate(rewards))


def _rule(where: str, reward: Reward) -> AnyRule:
    if reward.kind is RewardKind.CODE:
        return CodeRule(reward.name, reward.weight, reward.code or CodeReward(), reward.timeout)
    if reward.kind is RewardKind.JUDGE:
        if reward.judge is None:
            raise InvalidReward(f"{where}: kind Judge needs judge: its url and model")
        return JudgeRule(reward.name, reward.judge, reward.weight, reward.timeout.max_seconds)
    function = reward.function if reward.kind is RewardKind.PYTHON else BUILT_IN[reward.kind]
    if function is None:
        raise InvalidReward(f"{where}: kind Python needs function: module:function")
    ours = function.startswith(OUR_PACKAGE)  # a share of 1, though a text that is evaluated may choose another value
    return Rule(
        reward.name,
        function,
        reward.weight,
        dict(reward.config),
        reward.timeout.max_seconds,
        max(0.0, reward.range.min) if ours else reward.range.min,
        min(1.0, reward.range.max) if ours else reward.range.max,
        reward.parallelism or DEFAULT_PARALLELISM,
    )
