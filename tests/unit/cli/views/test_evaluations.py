"""Evaluations in the terminal: a line when one ends, and first, last and best at the end and in the status."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljob_api.status import EvaluationPoint, EvaluationReport, Finished, FinishedOutcome, RuntimeStatus
from rljob_runtime.cli.run.display import Lines
from rljob_runtime.cli.run.ending import ending
from rljob_runtime.cli.screen import screen
from rljob_runtime.cli.views.evaluations import evaluation_line, evaluation_summary
from rljob_runtime.cli.views.status import runtime_view
from tests.support.simulated_job import job

FIRST = EvaluationPoint(round=0, average=0.25, average_error=0.03)
MIDDLE = EvaluationPoint(round=5, average=0.5, average_error=0.0412, pass_at_k=0.6111)
LAST = EvaluationPoint(round=10, average=0.4, failed=3)


def report(last: EvaluationPoint, best: EvaluationPoint | None = None, name: str = "sums") -> EvaluationReport:
    return EvaluationReport(name=name, prompts=8, responses_per_prompt=4, first=FIRST, last=last, best=best)


@pytest.mark.parametrize(
    ("point", "line"),
    [
        (FIRST, "evaluation sums before round 1: 0.25 ± 0.03 avg@4"),
        (MIDDLE, "evaluation sums after round 5: 0.5 ± 0.041 avg@4, 0.611 pass@4"),
        (LAST, "evaluation sums after round 10: 0.4 avg@4; 3 responses have no score"),
        (EvaluationPoint(round=1, failed=4), "evaluation sums after round 1: no avg@4; 4 responses have no score"),
    ],
)
def test_a_result_is_a_line(point: EvaluationPoint, line: str) -> None:
    assert evaluation_line(report(point), point) == line


@pytest.mark.parametrize(
    ("last", "best", "summary"),
    [
        (FIRST, FIRST, "0.25 ± 0.03 avg@4 before round 1"),
        (
            LAST,
            MIDDLE,
            "0.25 ± 0.03 avg@4 before round 1, 0.4 avg@4 after round 10; "
            "best: 0.5 ± 0.041 avg@4, 0.611 pass@4 after round 5",
        ),
        (LAST, LAST, "0.25 ± 0.03 avg@4 before round 1, 0.4 avg@4 after round 10 (the best)"),
        (LAST, None, "0.25 ± 0.03 avg@4 before round 1, 0.4 avg@4 after round 10"),
    ],
)
def test_a_summary_has_the_first_the_last_and_the_best(
    last: EvaluationPoint, best: EvaluationPoint | None, summary: str
) -> None:
    assert evaluation_summary(report(last, best)) == summary


def test_results_are_printed_once_and_those_of_an_earlier_run_never() -> None:
    console = screen()
    lines = Lines(console, 10)
    with console.capture() as captured:
        for evaluations in (
            (report(FIRST),),
            (report(FIRST), report(MIDDLE, name="held")),
            (report(FIRST), report(MIDDLE, name="held")),
            (report(LAST), report(MIDDLE, name="held")),
        ):
            lines.status(RuntimeStatus(evaluations=evaluations))
    assert captured.get().splitlines() == [
        "evaluation held after round 5: 0.5 ± 0.041 avg@4, 0.611 pass@4",
        "evaluation sums after round 10: 0.4 avg@4; 3 responses have no score",
    ]


def test_the_ending_and_the_status_have_the_summary() -> None:
    finished = Finished(outcome=FinishedOutcome.COMPLETE, reason="RoundsFinished", message="")
    status = RuntimeStatus(round=10, finished=finished, evaluations=(report(LAST, MIDDLE),))
    summary = evaluation_summary(report(LAST, MIDDLE))
    assert f"  evaluation   sums: {summary}" in ending(job(), Path("runs/x"), status, "rljob run", 1).more
    console = screen()
    with console.capture() as captured:
        console.print(runtime_view(status, 10))
    assert "evaluation sums" in captured.get()
