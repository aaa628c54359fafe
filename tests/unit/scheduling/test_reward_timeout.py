"""The adaptive timeout: RollPacker's formula, what moves an anchor, and what the shadow sample tells."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.reward_timeout import AdaptiveTimeout, TimeoutRule

RULE = TimeoutRule(shadow_share=0.0)


@pytest.mark.parametrize(
    ("anchor", "seconds"),
    [(None, 30.0), (0.0, 2.0), (0.1, 2.0), (4 / 3, 2.0), (2.0, 3.0), (10.0, 15.0), (20.0, 30.0), (25.0, 30.0)],
)
def test_the_formula(anchor: float | None, seconds: float) -> None:
    assert RULE.seconds(anchor) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "settings",
    [
        {"minimum": 0.0},
        {"minimum": 31.0},
        {"factor": 0.9},
        {"maximum": float("inf")},
        {"factor": float("nan")},
        {"shadow_share": 1.1},
        {"shadow_share": -0.1},
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must have|is a share"):
        TimeoutRule(**settings)


def test_only_right_runs_move_the_anchor_and_only_up() -> None:
    timeout = AdaptiveTimeout(RULE)
    for cpu, right, anchor in (
        (9.0, False, None),
        (4.0, True, 4.0),
        (1.0, True, 4.0),
        (5.9, False, 4.0),
        (5.5, True, 5.5),
    ):
        timeout.record(timeout.decide("test", f"{cpu}"), cpu, cpu, right)
        assert timeout.anchor("test") == anchor
    assert timeout.anchor("another") is None


def test_a_run_past_its_timeout_does_not_pass_however_it_ends() -> None:
    timeout = AdaptiveTimeout(TimeoutRule(shadow_share=1.0))
    assert timeout.record(timeout.decide("test", "first"), 0.5, 0.6, True)
    late = timeout.decide("test", "late")
    assert (late.timeout, late.cpu_seconds, late.shadow_run) == (2.0, 30.0, True)
    assert not timeout.record(late.without_shadow_run, 2.1, 2.1, False)
    assert timeout.anchor("test") == 0.5
    timeout.record_shadow_run(late, 7.0, True)
    assert timeout.anchor("test") == 7.0, "a right run shows how long the test takes, also when it came late"
    assert timeout.decide("test", "next").timeout == pytest.approx(10.5)


def test_the_wall_clock_is_the_second_bound() -> None:
    timeout = AdaptiveTimeout(RULE)
    timeout.record(timeout.decide("test", "a"), 0.1, 0.1, True)
    allowance = timeout.decide("test", "b")
    assert allowance.wall_seconds == 2 * allowance.cpu_seconds == 4.0
    assert timeout.record(allowance, 0.1, 3.9, True)
    assert not timeout.record(allowance, 0.1, 4.1, True)


def test_the_shadow_sample_measures_unjust_timeouts() -> None:
    timeout = AdaptiveTimeout(TimeoutRule(shadow_share=1.0))
    timeout.restore({"test": 100})
    allowances = [timeout.decide("test", str(number)) for number in range(5)]
    assert timeout.stats.unjust is None
    for allowance, cpu, right in zip(
        allowances, (1.0, 3.0, 4.0, 30.1, 30.1), (True, True, True, False, False), strict=True
    ):
        if not timeout.record(allowance.without_shadow_run, min(cpu, 2.1), min(cpu, 2.1), right and cpu <= 2.0):
            timeout.record_shadow_run(allowance, cpu, right)
    figures = timeout.stats
    assert timeout.anchor("test") == 4.0, "of the right ones the slowest"
    assert (figures.runs, figures.overruns, figures.shadow_overruns, figures.late) == (5, 4, 4, 2)
    assert figures.unjust == 0.5


def test_the_share_of_shadow_runs() -> None:
    timeout = AdaptiveTimeout(TimeoutRule(shadow_share=0.05, seed=3))
    timeout.restore({"test": 0})
    shadows = [timeout.decide("test", str(number)).shadow_run for number in range(4000)]
    assert 0.03 < sum(shadows) / len(shadows) < 0.07
    again = AdaptiveTimeout(TimeoutRule(shadow_share=0.05, seed=3))
    again.restore({"test": 0})
    assert [again.decide("test", str(number)).shadow_run for number in reversed(range(4000))] == shadows[::-1]
    other = AdaptiveTimeout(TimeoutRule(shadow_share=0.05, seed=4))
    other.restore({"test": 0})
    assert [other.decide("test", str(number)).shadow_run for number in range(4000)] != shadows


def test_a_test_without_an_anchor_has_no_shadow_run() -> None:
    timeout = AdaptiveTimeout(TimeoutRule(shadow_share=1.0))
    assert not timeout.decide("test", "a").shadow_run


@pytest.mark.parametrize("bad", [-1, 1.5, "7", None, True])
def test_stored_anchors_are_checked(bad: object) -> None:
    with pytest.raises(ValueError, match=r"the anchor of test 't' is .*; milliseconds from 0 would be right"):
        AdaptiveTimeout(RULE).restore({"t": bad})


seconds = st.floats(0, 100, allow_nan=False)
rules = st.builds(
    lambda minimum, more, factor, share, seed: TimeoutRule(minimum, factor, minimum + more, share, seed),
    st.floats(0.01, 50), st.floats(0, 100), st.floats(1, 10), st.floats(0, 1), st.integers(0, 9),
)  # fmt: skip
runs = st.lists(st.tuples(st.sampled_from("ab"), seconds, st.floats(1, 3), st.booleans()), max_size=40)


@given(rules, runs)
def test_whatever_runs_come(rule: TimeoutRule, history: list[tuple[str, float, float, bool]]) -> None:
    timeout = AdaptiveTimeout(rule)
    slowest: dict[str, float] = {}
    for number, (test, cpu, slowdown, would_be_right) in enumerate(history):
        before = timeout.decide(test, "probe").timeout
        allowance = timeout.decide(test, str(number))
        assert allowance.timeout == before
        assert rule.minimum <= allowance.timeout <= allowance.cpu_seconds <= rule.maximum
        assert allowance.cpu_seconds in (allowance.timeout, rule.maximum)
        # The sandbox ends what is past its bound; nothing beyond it can be right.
        right = would_be_right and cpu <= allowance.cpu_seconds and cpu * slowdown <= allowance.wall_seconds
        passed = timeout.record(allowance.without_shadow_run, cpu, cpu * slowdown, right)
        if allowance.shadow_run and not allowance.in_time(cpu, cpu * slowdown):
            timeout.record_shadow_run(allowance, cpu, right)
        assert passed == (right and cpu <= allowance.timeout and cpu * slowdown <= 2 * allowance.timeout)
        if right:
            slowest[test] = max(cpu, slowest.get(test, 0.0))
        anchor = timeout.anchor(test)
        assert (anchor is None) == (test not in slowest)
        if anchor is not None:
            assert slowest[test] <= anchor <= slowest[test] + 0.0011
            assert timeout.decide(test, "probe").timeout >= min(slowest[test], rule.maximum)
    assert timeout.stats.late <= timeout.stats.shadow_overruns <= timeout.stats.overruns <= timeout.stats.runs


@given(runs)
def test_a_stored_state_decides_the_same(history: list[tuple[str, float, float, bool]]) -> None:
    timeout = AdaptiveTimeout(TimeoutRule(shadow_share=0.5))
    for number, (test, cpu, slowdown, right) in enumerate(history):
        timeout.record(timeout.decide(test, str(number)), cpu, cpu * slowdown, right)
    restored = AdaptiveTimeout(timeout.rule)
    restored.restore(json.loads(json.dumps(timeout.drain_raised())))
    for test in "ab":
        for sample in "xyz":
            assert restored.decide(test, sample) == timeout.decide(test, sample)
