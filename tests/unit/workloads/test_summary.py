"""The figures by which a trace is judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.workloads import read_trace
from rljob_runtime.workloads.summary import Quantiles, intraclass_correlation, longest_share, summarise
from tests.support.traces import multi_turn_folder, single_turn_folder

Groups = list[list[float]]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([[1, 1], [5, 5], [9, 9]], 1.0),  # the group decides
        ([[1, 5], [1, 5], [1, 5]], -1.0),  # no group is like any other, members are as unlike as can be
        # One-way table by hand: between 2·((2−4)²+(6−4)²)/1 = 16, within (1+1+1+1)/2 = 2, (16−2)/(16+2).
        ([[1, 3], [5, 7]], 14 / 18),
        # Sizes 1 and 3: between 1·(2−5)²·… = 12, within 2/2 = 1, mean size (4−10/4)/1 = 1.5, 11/(12+0.5).
        ([[2], [5, 6, 7]], 11 / 12.5),
        ([[3, 3], [3, 3]], None),  # nothing varies
        ([[1, 2, 3]], None),
        ([[1], [2]], None),
    ],
)
def test_intraclass_correlation(groups: Groups, expected: float | None) -> None:
    found = intraclass_correlation([np.array(group, dtype=float) for group in groups])
    assert found == (None if expected is None else pytest.approx(expected))


@given(
    st.lists(st.lists(st.floats(1, 1e4), min_size=2, max_size=5), min_size=2, max_size=8),
    st.floats(0.1, 100),
    st.floats(-100, 100),
)
def test_intraclass_correlation_is_bounded_and_free_of_units(groups: Groups, scale: float, shift: float) -> None:
    arrays = [np.array(group) for group in groups]
    found = intraclass_correlation(arrays)
    if found is None or np.ptp(np.concatenate(arrays)) < 1e-3:
        return
    assert -1 - 1e-9 <= found <= 1 + 1e-9
    assert intraclass_correlation([scale * group + shift for group in arrays]) == pytest.approx(found, abs=1e-5)


def test_share_of_the_longest() -> None:
    assert longest_share(np.array([1.0, 1, 1, 1, 6]), 0.2) == 0.6
    assert longest_share(np.ones(7), 0.2) == pytest.approx(0.2), "a value on the border counts in part"
    assert longest_share(np.array([5.0]), 1.0) == 1.0


def test_single_turn_summary(tmp_path: Path) -> None:
    found = summarise("t", read_trace(single_turn_folder(tmp_path)).steps)
    assert (found.prompts, found.responses, [step.step for step in found.steps]) == (8, 16, [2, 10])
    assert found.input_tokens == Quantiles.of([100, 101, 102, 103] * 2)
    assert found.output_tokens.longest == 103
    assert found.at_longest_share == 1 / 16
    assert found.steps[0].mean_over_longest == pytest.approx((20 + 21 + 22 + 23 + 4 * 7) / 8 / 23)
    assert found.mean_over_longest == pytest.approx(np.mean([step.mean_over_longest for step in found.steps]))
    assert found.kept_share == 0.5, "of the prompts with a filter"
    assert found.reward_seconds == Quantiles.of([2.0, 4.0] * 8)
    assert (found.turns.longest, found.tool_calls, found.tool_call_seconds) == (1, 0, None)


def test_multi_turn_summary(tmp_path: Path) -> None:
    found = summarise("t", read_trace(multi_turn_folder(tmp_path)).steps)
    assert found.output_tokens == Quantiles.of([9, 15, 11])
    assert found.turns == Quantiles.of([1, 3, 2])
    assert found.tool_calls == 4
    assert found.tool_call_seconds == Quantiles.of([0.25, 1.0, 3.0, 0.5])
    assert found.tool_answer_tokens == Quantiles.of([30, 20, 10, 40])
    assert (found.reward_seconds, found.kept_share) == (None, None)


def test_summary_of_nothing() -> None:
    with pytest.raises(ValueError, match="statistics of no responses"):
        summarise("t", [])
