"""Reward rules: the scoring rules of a job as plain values that travel to the workers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rljob_api.constants import SANDBOX_UNAVAILABLE
from rljob_api.spec import RLJobSpec
from rljob_api.spec.rewards import (
    DEFAULT_PARALLELISM,
    OUR_PACKAGE,
    CodeReward,
    JudgeReward,
    Reward,
    RewardKind,
    RewardTimeout,
)
from rljob_runtime.protocols.trajectory import EVALUATION_SOURCE

BUILT_IN = {
    RewardKind.MATH: "rljob_runtime.rewards.builtin:math",
    RewardKind.REASONING_GYM: "rljob_runtime.rewards.builtin:reasoning_gym",
}
"""Built-in functions by kind. Kind Python names its own."""

_EVALUATES_NOTHING = frozenset(
    {"rljob_runtime.rewards.builtin:has_number", "rljob_runtime.rewards.builtin:last_number"}
)
"""Built-in functions that search a text but pass it to no parser."""


class InvalidReward(ValueError):
    """A rule that cannot be used.

    The message names the rule and the reason.
    """


class CannotSandbox(InvalidReward):
    """A rule that needs a sandbox or a confined worker, on a machine that has neither.

    `reason` is the machine-readable reason.
    """

    reason = SANDBOX_UNAVAILABLE


@dataclass(frozen=True)
class Rule:
    """A function rule.

    `function` ("module:function") is called with (prompt, response, **config). Its value counts `weight` times.
    """

    name: str
    function: str
    weight: float = 1.0
    config: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 30.0
    """Bound of one call, without the time that it waits for a processor. A longer call is a failure of the system: the
    worker is killed and the sample aborted."""
    least: float = -1e6
    most: float = 1e6
    """`least` and `most` bound its value."""
    parallelism: int = DEFAULT_PARALLELISM
    """Concurrent calls, together with the rules that share its workers."""
    sources: Sequence[str] | None = None
    """The prompt sources and evaluations whose responses it scores; None for all."""

    @property
    def ours(self) -> bool:
        """Whether the function is the runtime's own."""
        return self.function.startswith(OUR_PACKAGE)

    @property
    def confined(self) -> bool:
        """Whether its worker gives up all rights.

        It evaluates a model's text, and a built-in function needs nothing but its arguments.
        """
        return self.ours and self.function not in _EVALUATES_NOTHING


@dataclass(frozen=True)
class CodeRule:
    """A Code rule: runs the response's program against the tests of its prompt."""

    name: str
    weight: float = 1.0
    settings: CodeReward = field(default_factory=CodeReward)
    timeout: RewardTimeout = field(default_factory=RewardTimeout)
    sources: Sequence[str] | None = None


@dataclass(frozen=True)
class JudgeRule:
    """A Judge rule: a model scores the response."""

    name: str
    settings: JudgeReward
    weight: float = 1.0
    timeout_seconds: float = 30.0
    """Bound of one request."""
    sources: Sequence[str] | None = None


@dataclass(frozen=True)
class EnvironmentRule:
    """An Environment rule: its value is the reward that the episode's environment gave."""

    name: str
    weight: float = 1.0
    least: float = -1e6
    most: float = 1e6
    """`least` and `most` bound its value."""
    sources: Sequence[str] | None = None


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Replace each `{name}` of `values` once.

    Inserted text is not scanned again, and other braces stay.
    """
    fields = re.compile("|".join(re.escape(f"{{{name}}}") for name in values))
    return fields.sub(lambda match: values[match.group()[1:-1]], template)


def confined(rules: Sequence[Rule]) -> bool:
    """Return whether a worker with these rules gives up all rights after loading them."""
    return all(rule.confined for rule in rules)


AnyRule = Rule | CodeRule | JudgeRule | EnvironmentRule


def rules_of(rewards: Sequence[Reward]) -> tuple[AnyRule, ...]:
    """Convert `spec.rewards` into rules.

    Raises `InvalidReward` for a reward that lacks a field of its kind.
    """
    return tuple(_rule(f"spec.rewards[{position}] {reward.name}", reward) for position, reward in enumerate(rewards))


def rules_of_sources(spec: RLJobSpec) -> tuple[AnyRule, ...]:
    """Return the rules of a job, each with the sources and evaluations that name it.

    Raises `InvalidReward` as `rules_of` does.
    """
    rules = rules_of(spec.rewards)
    named = {one.name: one.rewards for one in spec.data.sources or ()}
    named |= {EVALUATION_SOURCE + one.name: one.rewards for one in spec.evaluation}
    if all(names is None for names in named.values()):
        return rules
    return tuple(
        replace(rule, sources=tuple(source for source, names in named.items() if names is None or rule.name in names))
        for rule in rules
    )


def scores(rule: AnyRule, prompt: object) -> bool:
    """Tell whether a rule scores responses to this prompt: its source names the rule, or it has no named source."""
    source = getattr(prompt, "source", "")
    return rule.sources is None or not source or source in rule.sources


def _rule(where: str, reward: Reward) -> AnyRule:
    if reward.kind is RewardKind.CODE:
        return CodeRule(reward.name, reward.weight, reward.code or CodeReward(), reward.timeout)
    if reward.kind is RewardKind.JUDGE:
        if reward.judge is None:
            raise InvalidReward(f"{where}: kind Judge needs judge: its url and model")
        return JudgeRule(reward.name, reward.judge, reward.weight, reward.timeout.max_seconds)
    if reward.kind is RewardKind.ENVIRONMENT:
        return EnvironmentRule(reward.name, reward.weight, reward.range.min, reward.range.max)
    function = reward.function if reward.kind is RewardKind.PYTHON else BUILT_IN[reward.kind]
    if function is None:
        raise InvalidReward(f"{where}: kind Python needs function: module:function")
    ours = function.startswith(
        OUR_PACKAGE
    )  # built-in scores are in [0, 1], but an evaluated text may choose another value
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
