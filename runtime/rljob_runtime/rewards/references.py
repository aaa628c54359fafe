"""Reference checks: find records that no reward can score when prompts are read.

A reference answer that no scorer can use must not cost a round its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rljob_runtime.data.prompt import Prompt
from rljob_runtime.rewards.answers import UnusableReference
from rljob_runtime.rewards.builtin import CHECKS
from rljob_runtime.rewards.code_test_cases import InvalidTests, parse_tests
from rljob_runtime.rewards.rules import AnyRule, CodeRule, Rule, scores

Check = Callable[[Prompt], None]


def reference_problem(rules: Sequence[AnyRule]) -> Callable[[Prompt], str | None]:
    """Return a function that says why a rule cannot score responses to a prompt, or None."""
    checks = [(rule, check) for rule in rules if (check := _check_of(rule)) is not None]

    def problem(prompt: Prompt) -> str | None:
        for rule, check in checks:
            if not scores(rule, prompt):
                continue
            try:
                check(prompt)
            except (UnusableReference, InvalidTests) as error:
                return f"reward {rule.name} cannot score it: {error}; repair its answer"
        return None

    return problem


def _check_of(rule: AnyRule) -> Check | None:
    if isinstance(rule, CodeRule):
        field = rule.settings.tests_field
        return lambda prompt: _check_tests(field, prompt)
    if isinstance(rule, Rule) and rule.ours:
        return CHECKS.get(rule.function.partition(":")[2])
    return None


def _check_tests(field: str, prompt: Prompt) -> None:
    parse_tests(field, prompt.answer, prompt.metadata)
