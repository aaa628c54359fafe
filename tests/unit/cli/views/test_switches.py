"""Switches in the terminal: the sizes of a round in a word, a line for each switch, or why there is none."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.status import LayoutSwitchesReport, LayoutSwitchReport, RoundReport, RuntimeStatus, SwitchesState
from rljob_runtime.cli.run.display import Lines, round_line
from rljob_runtime.cli.screen import screen
from rljob_runtime.cli.views.status import runtime_view
from rljob_runtime.cli.views.switches import switch_lines, switches_summary, why_not
from rljob_runtime.protocols import TrainReport

TRAINED = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0)
ONE = LayoutSwitchReport(
    machine="rollout-0", at_seconds=12.34, from_size=1, to_size=2, reached_size=2, responses=14, state="Recompute",
    predicted_seconds=0.5, seconds=0.412, predicted_gain_seconds=3.25,
)  # fmt: skip
LINE = "rollout-0: TP 1 → 2 at 12.3 s, 14 responses, Recompute, 0.41 s (0.50 s predicted), gain 3.2 s predicted"
NONE = LayoutSwitchesReport(state=SwitchesState.NOT_SWITCHED, reason="NoGain", message="nothing to win", made=0)


def report(*switches: LayoutSwitchReport, **sums: int) -> RoundReport:
    made = sum(one.reached_size == one.to_size for one in switches)
    values: dict[str, Any] = {"state": SwitchesState.SWITCHED, "made": made, "failed": len(switches) - made, **sums}
    return RoundReport(
        round=3, tensor_parallel_size=1, layout_switches=LayoutSwitchesReport(**values, switches=switches)
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, LINE),
        ({"gain_seconds": -0.44}, f"{LINE}, -0.4 s measured"),
        ({"recompute_reason": "NoRoom"}, LINE.replace("Recompute", "Recompute (NoRoom)")),
        (
            {"state": None, "predicted_seconds": None, "predicted_gain_seconds": None},
            "rollout-0: TP 1 → 2 at 12.3 s, 14 responses, 0.41 s",
        ),
        (
            {"reached_size": 1},
            "rollout-0: TP 1 → 2 at 12.3 s, 14 responses, Recompute, 0.41 s (0.50 s predicted), refused: it keeps TP 1",
        ),
        (
            {"reached_size": 0},
            "rollout-0: TP 1 → 2 at 12.3 s, 14 responses, Recompute, 0.41 s (0.50 s predicted), the machine was lost",
        ),
    ],
)
def test_a_switch_is_a_line(changes: dict[str, Any], line: str) -> None:
    assert switch_lines(report(ONE.model_copy(update=changes))) == [line]


def test_switches_that_are_not_listed_are_counted() -> None:
    assert switch_lines(report(ONE, made=17))[-1] == "16 further switches"


@pytest.mark.parametrize(
    ("reached", "summary"), [((), "TP 1"), ((2,), "TP 1→2"), ((4, 2, 1, 0), "TP 1→2,4"), ((0, 1), "TP 1")]
)
def test_a_round_has_the_sizes_that_were_reached(reached: tuple[int, ...], summary: str) -> None:
    switches = [ONE.model_copy(update={"reached_size": size}) for size in reached]
    assert switches_summary(report(*switches)) == summary


def test_a_job_without_switches_has_no_word_of_them() -> None:
    plain = RoundReport(round=3, tensor_parallel_size=1, seconds=2.0)
    assert switches_summary(plain) is why_not(plain) is None
    assert switch_lines(plain) == []
    assert round_line(plain, 9) == "round 3/9  2.0 s"


def test_a_run_prints_the_switches_below_their_round(capsys: pytest.CaptureFixture[str]) -> None:
    Lines(screen(), 9).round(report(ONE), TRAINED)
    assert capsys.readouterr().out.splitlines() == ["round 3/9  TP 1→2", f"  {LINE}"]


def test_the_view_of_a_job_shows_switches_or_why_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    console = screen()
    console.width = 200
    console.print(runtime_view(RuntimeStatus(last_round=report(ONE)), 9))
    assert LINE in capsys.readouterr().out
    without = RoundReport(round=3, tensor_parallel_size=1, layout_switches=NONE)
    console.print(runtime_view(RuntimeStatus(last_round=without), 9))
    assert "NoGain: nothing to win" in capsys.readouterr().out
    assert why_not(report(ONE)) is None
