"""The switches of a round are events, once: one for each pair of sizes, and one for those that failed."""

from __future__ import annotations

from typing import Any

from rljob_api.status import (
    LayoutSwitchesReport,
    LayoutSwitchReport,
    ParallelismHistory,
    RLJobStatus,
    RoundReport,
    RuntimeStatus,
    SwitchesState,
)
from rljob_operator.policies.status.events import transitions

REFUSED = LayoutSwitchReport(
    machine="rollout-0", at_seconds=1.0, from_size=1, to_size=2, reached_size=1, responses=3, seconds=0.5
)
MADE = REFUSED.model_copy(update={"machine": "rollout-1", "reached_size": 2})
LOST = REFUSED.model_copy(update={"machine": "rollout-2", "reached_size": 0})

SWITCHED = ("LayoutSwitched", "inside a round, from TP 1 to TP 2")


def events(counted: int | None, now: int | None, *switches: LayoutSwitchReport, **sums: Any) -> list[tuple[str, str]]:
    """What is told when the planner has counted round `now` after `counted`, and round 5 had these switches."""
    failed = sum(one.reached_size != one.to_size for one in switches)
    report = LayoutSwitchesReport(**{"state": SwitchesState.SWITCHED, "failed": failed, **sums}, switches=switches)
    runtime = RuntimeStatus(last_round=RoundReport(round=5, layout_switches=report))

    def status(round_: int | None) -> RLJobStatus:
        history = None if round_ is None else ParallelismHistory(start=1, machines=3, round=round_)
        return RLJobStatus(runtime=runtime, parallelism=history)

    return [(one.reason, one.message) for one in transitions(status(counted), status(now), ())]


def test_failed_switches_are_told_with_machine_and_size() -> None:
    told = "rollout-0 keeps TP 1 (to TP 2), rollout-2 was lost (to TP 2)"
    message = f"round 5: 2 switches of the tensor parallel size failed: {told}"
    assert events(4, 5, REFUSED, MADE, LOST) == [SWITCHED, ("LayoutSwitchFailed", message)]


def test_a_round_is_told_once() -> None:
    assert events(5, 5, REFUSED) == []
    assert events(None, 5, REFUSED) == [], "a new operator cannot tell whether the round was told"
    assert events(4, 4, REFUSED) == [], "the planner has not counted it"


def test_switches_are_one_event_for_each_pair_of_sizes() -> None:
    assert events(4, 5, MADE, MADE) == [SWITCHED]
    back = MADE.model_copy(update={"from_size": 2, "to_size": 1, "reached_size": 1})
    assert events(4, 5, back, MADE) == [SWITCHED, ("LayoutSwitched", "inside a round, from TP 2 to TP 1")]
    assert events(4, 5) == []
    assert events(5, 5, MADE) == []


def test_failures_that_are_not_listed_are_counted() -> None:
    message = "round 5: 3 switches of the tensor parallel size failed: not listed"
    assert events(4, 5, MADE, failed=3) == [SWITCHED, ("LayoutSwitchFailed", message)]
