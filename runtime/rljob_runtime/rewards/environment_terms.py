"""Environment terms: the rules of kind Environment, whose value is the reward that an episode's environment gave."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_runtime.protocols.rewards import Reward
from rljob_runtime.rewards.errors import Failure, ScoreFailed
from rljob_runtime.rewards.rules import EnvironmentRule, scores


def environment_terms(rules: Sequence[EnvironmentRule], prompt: object, given: float | None) -> Reward:
    """Return the weighted sum of the rules that score responses to this prompt, and their values.

    `given`: the environment's reward; None if it gave none. Raises `ScoreFailed` if a rule needs it then, and if it is
    outside a rule's range.
    """
    total, terms = 0.0, dict[str, float]()
    for rule in rules:
        if not scores(rule, prompt):
            continue
        if given is None:
            right = "a reward of the environment, or sources that leave this rule out of their rewards, would be right"
            raise ScoreFailed(Failure.NOT_GIVEN, rule.name, f"the environment gave no reward; {right}")
        if not rule.least <= given <= rule.most:
            text = f"the environment's reward is {given:g}, outside its range of {rule.least:g} to {rule.most:g}"
            raise ScoreFailed(Failure.OUT_OF_RANGE, rule.name, text)
        terms[rule.name] = given
        total += rule.weight * given
    return Reward(total, terms)
