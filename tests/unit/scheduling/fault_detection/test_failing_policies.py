"""A policy that fails several times in a row is not asked again; one success in between resets the count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.fault_detection.failing_policies import MOST_FAILURES, FailingPolicies


@pytest.mark.parametrize(
    ("history", "asked"),
    [("", True), ("ff", True), ("fff", False), ("ffdf", True), ("ffdfff", False), ("d", True)],
)
def test_a_policy_is_asked_until_it_failed_three_times_in_a_row(history: str, asked: bool) -> None:
    policies = FailingPolicies()
    for event in history:
        policies.failed("a") if event == "f" else policies.decided("a")
    assert policies.is_asked("a") is asked
    assert policies.is_asked("b")


@given(st.lists(st.sampled_from("fd")))
def test_only_the_last_events_count(history: list[str]) -> None:
    policies = FailingPolicies()
    for event in history:
        policies.failed("a") if event == "f" else policies.decided("a")
    assert policies.is_asked("a") == ("".join(history)[-MOST_FAILURES:] != "f" * MOST_FAILURES)
