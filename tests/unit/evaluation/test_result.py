"""Results of evaluations: what a summary counts, and that a line is read as it was written."""

from __future__ import annotations

import json
from math import isclose
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.evaluation import Estimate, EvaluationResult, EvaluationTimes, SampleScore, summarize
from rljob_runtime.evaluation.result import Evaluated

GSM8K = Evaluated("gsm8k", 10, 12, 2)
SCORES = st.builds(
    SampleScore,
    st.sampled_from([0.0, 0.5, 1.0, 1.5]),
    st.dictionaries(st.sampled_from(["math", "format"]), st.floats(-1, 1), max_size=2),
    st.integers(0, 100),
    st.booleans(),
)


def right(tokens: int = 10) -> SampleScore:
    return SampleScore(1.0, {"math": 1.0, "format": 0.0}, tokens)


def wrong(tokens: int = 10, cut: bool = False) -> SampleScore:
    return SampleScore(0.0, {"math": 0.0, "format": 0.5}, tokens, cut)


def test_a_summary_of_two_prompts() -> None:
    result = summarize(
        GSM8K, {3: [right(10), wrong(30, cut=True)], 8: [wrong(), wrong()]}, EvaluationTimes(9.0, 4.0, 5.0)
    )
    assert result == EvaluationResult(
        name="gsm8k",
        round=10,
        weight_version=12,
        prompts=2,
        responses_per_prompt=2,
        failed=0,
        missing_prompts=0,
        average=0.25,
        average_error=0.25,
        pass_at={1: Estimate(0.25, 0.25, 2, 0), 2: Estimate(0.5, 0.5, 2, 0)},
        rules={"math": 0.25, "format": 0.375},
        mean_tokens=15.0,
        cut_share=0.25,
        times=EvaluationTimes(9.0, 4.0, 5.0),
    )
    assert result.pass_at_most == (2, Estimate(0.5, 0.5, 2, 0))


def test_a_failed_response_is_missing_and_not_wrong() -> None:
    result = summarize(GSM8K, {0: [right()], 1: [right(), right()]})
    assert (result.failed, result.missing_prompts) == (1, 0)
    assert result.average == 1.0
    assert result.pass_at == {1: Estimate(1.0, 0.0, 2, 0), 2: Estimate(1.0, None, 1, 1)}


def test_a_prompt_without_a_score_is_missing_and_counted() -> None:
    result = summarize(GSM8K, {0: [right(), right()], 1: [], 2: [wrong(), wrong()]})
    assert (result.prompts, result.failed, result.missing_prompts) == (3, 2, 1)
    assert (result.average, result.average_error) == (0.5, 0.5)


def test_an_evaluation_without_any_score_has_no_average() -> None:
    result = summarize(GSM8K, {0: [], 1: []})
    assert (result.average, result.average_error, result.pass_at) == (None, None, {})
    assert (result.failed, result.missing_prompts, result.mean_tokens) == (4, 2, 0.0)
    assert EvaluationResult.from_json(result.to_json()) == result


def test_a_threshold_says_what_passes() -> None:
    half = [SampleScore(0.5), SampleScore(0.0)]
    assert summarize(GSM8K, {0: half}).pass_at[1].value == 0.0
    assert summarize(Evaluated("gsm8k", 0, 1, 2, pass_reward=0.5), {0: half}).pass_at[1].value == 0.5


@given(st.dictionaries(st.integers(0, 20), st.lists(SCORES, max_size=4), max_size=6))
def test_a_line_is_read_as_it_was_written(scores: dict[int, list[SampleScore]]) -> None:
    result = summarize(Evaluated("a", 3, 4, 4), scores, EvaluationTimes(1.5, 0.25, 0.5))
    line = result.to_json()
    assert "\n" not in line
    assert EvaluationResult.from_json(line) == result
    assert result.failed == 4 * len(scores) - sum(map(len, scores.values()))
    means = [fmean(one.reward for one in each) for each in scores.values() if each]
    if means:
        assert result.average is not None
        assert isclose(result.average, fmean(means), abs_tol=1e-12)


def test_the_names_of_a_line() -> None:
    line = json.loads(summarize(GSM8K, {0: [right(), wrong()]}, EvaluationTimes(3.0, 1.0, 2.0)).to_json())
    assert line == {
        "name": "gsm8k",
        "round": 10,
        "weightVersion": 12,
        "prompts": 1,
        "responsesPerPrompt": 2,
        "failed": 0,
        "missingPrompts": 0,
        "average": 0.5,
        "passAt": {"1": {"value": 0.5, "prompts": 1, "missing": 0}, "2": {"value": 1.0, "prompts": 1, "missing": 0}},
        "rules": {"math": 0.5, "format": 0.25},
        "meanTokens": 10.0,
        "cutShare": 0.0,
        "seconds": 3.0,
        "idleSeconds": 1.0,
        "waitingSeconds": 2.0,
    }


def test_fields_of_a_later_version_are_ignored() -> None:
    result = summarize(GSM8K, {0: [right(), wrong()]})
    assert EvaluationResult.from_dict({**result.to_dict(), "later": 1}) == result


@pytest.mark.parametrize("line", ['{"name": "a"}', "[]", "{", '{"name": "a", "round": "x", "weightVersion": 1}', "7"])
def test_what_is_no_evaluation_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"not an evaluation|Expecting"):
        EvaluationResult.from_json(line)
