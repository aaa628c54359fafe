"""What is shown of evaluations: in the status, in Prometheus, in files, in TensorBoard and to observers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_api.evaluation_metric import EvaluationMetric
from rljob_api.status import EvaluationPoint, EvaluationReport, RoundReport, RuntimeStatus
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.reporting.evaluations import EvaluationBoard, evaluation_reports
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.reporting.observer_feed import observer_journals
from rljob_runtime.coordinator.reporting.round_log import RoundJournal, RoundLog, TensorBoard
from rljob_runtime.coordinator.reporting.status_reporter import Reporter
from rljob_runtime.evaluation import Estimate, EvaluationResult, EvaluationTimes, evaluation_metrics, read_evaluations
from rljob_runtime.protocols import TrainReport
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane
from tests.support.operator.harness import make_job
from tests.support.simulated_job import job

TRAINED = TrainReport(1, 0.5, 1.0, 1e-4, 0.0, 0.0, 1.0, 64, 1.0)


def result(round: int, average: float | None = 0.5, passed: float = 0.75, name: str = "sums") -> EvaluationResult:
    return EvaluationResult(
        name=name,
        round=round,
        weight_version=round + 1,
        prompts=8,
        responses_per_prompt=2,
        average=average,
        average_error=0.125,
        pass_at={1: Estimate(0.25, 0.1, 8, 0), 2: Estimate(passed, 0.2, 8, 0)},
        rules={"right": 0.5},
        times=EvaluationTimes(9.0, 6.0, 3.0),
    )


def point(round: int, average: float | None = 0.5, passed: float = 0.75) -> EvaluationPoint:
    return EvaluationPoint(
        round=round,
        average=average,
        average_error=0.125,
        pass_at_k=passed,
        pass_at_k_error=0.2,
        seconds=9.0,
        waiting_seconds=3.0,
    )


def test_the_status_has_the_first_the_last_and_the_best_result() -> None:
    history = (result(0, 0.25), result(0, 0.1, name="held"), result(10, 0.75, 0.5), result(20, 0.5))
    sums, held = evaluation_reports(history, {})
    assert sums == EvaluationReport(
        name="sums",
        prompts=8,
        responses_per_prompt=2,
        first=point(0, 0.25),
        last=point(20, 0.5),
        best=point(10, 0.75, 0.5),
    )
    assert held.first == held.last == held.best == point(0, 0.1)
    (by_pass, _) = evaluation_reports(history, {"sums": EvaluationMetric.PASS_AT_K})
    assert by_pass.best == point(0, 0.25)


def test_an_evaluation_without_scores_is_shown_and_is_not_the_best() -> None:
    (report,) = evaluation_reports((result(0, None),), {})
    assert report.last == point(0, None)
    assert report.best is None


async def test_the_board_follows_results_and_rewinds() -> None:
    reporter = Reporter(SimulatedControlPlane(job(), 1), RuntimeStatus(), Settings.of(job()).back_off)
    board = EvaluationBoard(reporter)

    def shown() -> list[tuple[int, int, int]]:
        return [
            (one.first.round, one.last.round, one.best.round)
            for one in reporter.draft.evaluations
            if one.first and one.last and one.best
        ]

    board.restore([result(0, 0.1), result(10, 0.4)])
    assert shown() == [(0, 10, 10)]
    events = reporter.draft.event
    board.add(result(20, 0.2))
    assert (shown(), reporter.draft.event) == ([(0, 20, 10)], events + 1)
    for _ in range(2):
        board.restore([result(0, 0.1)])
        assert shown() == [(0, 0, 0)]
    assert reporter.draft.event == events + 2, "an equal status is no event"


def test_prometheus_has_the_last_result() -> None:
    metrics = CoordinatorMetrics()
    for last in (point(0, 0.25), point(10, None, 0.5)):
        metrics.status(RuntimeStatus(evaluations=(EvaluationReport(name="sums", last=last),)))

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"rljob_coordinator_{name}", {"evaluation": "sums", **labels})

    assert value("evaluation", metric="average", of="value") == 0.25, "the last one that there was"
    assert value("evaluation", metric="pass_at_k", of="value") == 0.5
    assert value("evaluation", metric="pass_at_k", of="error") == 0.2
    assert value("evaluation_seconds", of="total") == 9.0
    assert value("evaluation_seconds", of="waiting") == 3.0


def test_an_evaluation_is_in_the_file_and_in_tensorboard_at_its_round(tmp_path: Path) -> None:
    writers: dict[str, Any] = {
        "rounds.jsonl": lambda: RoundLog(tmp_path),
        "tensorboard/": lambda: TensorBoard(tmp_path),
    }
    journal = RoundJournal(writers)
    journal.evaluated(result(0))
    assert journal(RoundReport(round=1), TRAINED) is None
    journal.evaluated(result(1, 0.75))
    journal.close()
    assert read_evaluations(tmp_path) == (result(0), result(1, 0.75))
    curves = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in curves.Tensors("evaluation/sums/average")] == [0, 1]
    assert [event.step for event in curves.Tensors("evaluation/sums/pass_at_2")] == [0, 1]


def test_evaluations_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    journal = RoundJournal({"rounds.jsonl": lambda: RoundLog(tmp_path)})
    (tmp_path / "evaluations.jsonl").mkdir()
    journal.evaluated(result(0))
    journal._queue.join()
    warning = journal.problem()
    assert warning is not None
    assert warning.message.startswith("1 evaluations are not in rounds.jsonl (")
    (tmp_path / "evaluations.jsonl").rmdir()
    journal.evaluated(result(5))
    journal.close()
    assert journal.problem() is None
    assert [one.round for one in read_evaluations(tmp_path)] == [5]


def test_observers_receive_evaluations_with_the_round_of_the_weights(tmp_path: Path) -> None:
    received: list[tuple[int, dict[str, float]]] = []

    class Recorder:
        def round(self, number: int, metrics: dict[str, float]) -> None:
            received.append((number, metrics))

        def close(self) -> None:
            pass

    (journal,) = observer_journals(
        make_job(observers=[{"name": "mine"}]), tmp_path, lambda name: lambda job, config: Recorder()
    )
    journal.evaluated(result(3))
    journal.close()
    assert received == [(3, evaluation_metrics(result(3)))]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("average", 0.5),
        ("average_error", 0.125),
        ("pass_at_1", 0.25),
        ("pass_at_2", 0.75),
        ("pass_at_2_error", 0.2),
        ("rule/right", 0.5),
        ("waiting_seconds", 3.0),
        ("idle_seconds", 6.0),
    ],
)
def test_the_numbers_of_an_evaluation(name: str, value: float) -> None:
    assert evaluation_metrics(result(3))[f"evaluation/sums/{name}"] == value
    assert "evaluation/sums/average" not in evaluation_metrics(result(3, None))
