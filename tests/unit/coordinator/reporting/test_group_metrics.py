"""Metrics of a round equal a second computation from its samples."""

from array import array
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import RoundReport
from rljob_runtime.coordinator.reporting.group_metrics import quantile, with_group_metrics
from rljob_runtime.protocols.trajectory import (
    FinishReason,
    Group,
    PromptKey,
    Response,
    ScoredResponse,
    TrajectoryKey,
)

RULES = ("right", "short")
ANSWER = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 40), st.booleans())
"""Values of both rules, tokens, and whether it was cut at the limit."""


def groups_of(answers: list[list[tuple[int, int, int, bool]]]):
    groups, terms = [], {}
    for index, group in enumerate(answers):
        prompt, scored = PromptKey(0, index), []
        for number, (right, short, tokens, cut) in enumerate(group):
            key = TrajectoryKey(prompt, number)
            terms[key] = dict(zip(RULES, (float(right), float(short)), strict=True))
            finish = FinishReason.LENGTH if cut else FinishReason.STOP
            response = Response(key, 1, 1, array("i", [0] * tokens), (), finish, "rollout-0")
            scored.append(ScoredResponse(response, right + 0.5 * short))
        groups.append(Group(prompt, (1,), tuple(scored)))
    return groups, terms


@given(st.lists(st.lists(ANSWER, min_size=1, max_size=6), min_size=1, max_size=6))
def test_the_report_has_what_a_second_computation_finds(answers):
    report = with_group_metrics(RoundReport(round=1), *groups_of(answers))
    flat = [answer for group in answers for answer in group]
    close = lambda value: pytest.approx(value, rel=1e-3)  # noqa: E731
    assert [(rule.name, rule.mean, rule.deviation) for rule in report.reward_rules or ()] == [
        (name, close(mean(answer[place] for answer in flat)), close(pstdev(answer[place] for answer in flat)))
        for place, name in enumerate(RULES)
    ]
    rewards = [[right + 0.5 * short for right, short, _, _ in group] for group in answers]
    assert report.group_reward_deviation == close(mean(pstdev(group) for group in rewards))
    assert report.equal_reward_groups == close(mean(max(group) == min(group) for group in rewards))
    assert report.truncated_responses == close(mean(answer[3] for answer in flat))
    lengths = [answer[2] for answer in flat]
    for share, shown in ((0.5, report.response_tokens_p50), (0.9, report.response_tokens_p90)):
        assert shown in lengths
        assert mean(length <= shown for length in lengths) >= share
        assert mean(length < shown for length in lengths) < share


@pytest.mark.parametrize(
    ("lengths", "share", "expected"),
    [([7], 0.5, 7), ([1, 2], 0.5, 1), ([1, 2, 3], 0.5, 2), (list(range(1, 101)), 0.99, 99), ([1, 9], 0.99, 9)],
)
def test_quantiles_are_lengths_that_occur(lengths, share, expected):
    assert quantile(lengths, share) == expected


def test_rewards_without_terms_have_no_rules():
    groups, _ = groups_of([[(1, 0, 3, False)]])
    assert with_group_metrics(RoundReport(round=1), groups, {}).reward_rules == ()
