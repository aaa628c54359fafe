"""What an update measured is in its report and in the status, and absent where a job does not compute it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome, RoundReport, RuntimeStatus
from rljob_runtime.cli.screen import screen
from rljob_runtime.cli.views.status import runtime_view
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.reporting.training_metrics import TrainingMetrics, training_metrics
from rljob_runtime.observers.round_metrics import OF_TRAINING, round_metrics
from rljob_runtime.protocols import TrainReport
from rljob_runtime.simulator.peers.trainer import SimulatedTrainer
from tests.support.simulated_job import Stage, job

FIELDS = frozenset(TrainingMetrics.__annotations__)
TRAINED = TrainReport(1, 0.5, 1.25, 1e-5, 0.012345, 0.3, 2.34567, 64, 1.0)


def measured(step: int) -> dict[str, Any]:
    """What the update of this step measured; no two numbers are equal."""
    clips = {"clip_fraction_low": 0.4 + step / 100, "clip_fraction_high": 0.5 + step / 100}
    numbers = {"entropy": 1 + step / 100, "reference_kl": 0.2 + step / 100, "mismatch_kl": 0.03 + step / 100}
    return {**numbers, "metrics": clips}


def of_report(report: RoundReport) -> dict[str, float]:
    return {name: value for name in FIELDS if (value := getattr(report, name)) is not None}


def played(folder: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, changes: dict[int, dict[str, Any]]) -> Stage:
    """A job whose trainer measures this at each step."""
    train = SimulatedTrainer.train

    async def measure(self: SimulatedTrainer, term: int, step: int, groups: Any) -> TrainReport:
        return replace(await train(self, term, step, groups), **changes[step])

    monkeypatch.setattr(SimulatedTrainer, "train", measure)
    stage = Stage(folder / "state.db", job=job(rounds=len(changes), mode=mode))
    end = stage.play()
    assert end is not None
    assert end.outcome is FinishedOutcome.COMPLETE
    return stage


def statuses(stage: Stage) -> dict[int, list[dict[str, Any]]]:
    """By round, what the statuses with its report had, as the API server gets it."""
    assert stage.control is not None
    found: dict[int, list[dict[str, Any]]] = {}
    for status in stage.control.reports:
        last = status.to_dict().get("lastRound")
        if last is not None:
            found.setdefault(last["round"], []).append(last)
    return found


@pytest.mark.parametrize("mode", Mode)
def test_report_and_status_have_what_the_update_measured(tmp_path, monkeypatch, mode: Mode) -> None:
    stage = played(tmp_path, monkeypatch, mode, {step: measured(step) for step in (1, 2, 3)})
    shown = statuses(stage)
    assert [report.round for report in stage.closed] == sorted(shown) == [1, 2, 3]
    for report in stage.closed:
        expected = measured(report.round)
        expected |= expected.pop("metrics")
        assert of_report(report) == pytest.approx(expected)
        for last in shown[report.round]:
            names = ("entropy", "referenceKl", "mismatchKl", "clipFractionLow", "clipFractionHigh")
            fields = ("entropy", "reference_kl", "mismatch_kl", "clip_fraction_low", "clip_fraction_high")
            assert [last[name] for name in names] == [getattr(report, field) for field in fields]


@pytest.mark.parametrize("mode", Mode)
def test_what_a_job_does_not_compute_is_absent(tmp_path, monkeypatch, mode: Mode) -> None:
    own = {"metrics": {"gate": 0.5}}
    stage = played(tmp_path, monkeypatch, mode, {1: own, 2: own})
    for report in stage.closed:
        assert of_report(report).keys() == {"entropy", "mismatch_kl"}
    for lasts in statuses(stage).values():
        for last in lasts:
            assert not {"referenceKl", "clipFractionLow", "clipFractionHigh"} & last.keys()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_no_status_can_hold_is_absent(number: float) -> None:
    trained = replace(TRAINED, reference_kl=number, metrics={"clip_fraction_low": number, "clip_fraction_high": 3.0})
    report = RoundReport(round=1, **training_metrics(trained))
    assert of_report(report) == {"entropy": 2.346, "mismatch_kl": 0.01235, "clip_fraction_high": 3.0}


def test_numbers_that_rounding_put_below_0_are_shown() -> None:
    report = RoundReport(round=1, **training_metrics(replace(TRAINED, entropy=-1e-9, mismatch_kl=-2e-9)))
    assert RoundReport.model_validate(report.to_dict()) == report
    assert (report.entropy, report.mismatch_kl) == (-1e-9, -2e-9)


def test_no_observer_gets_a_number_twice() -> None:
    assert OF_TRAINING == FIELDS <= RoundReport.model_fields.keys()
    trained = replace(TRAINED, **measured(1))
    metrics = round_metrics(RoundReport(round=1, **training_metrics(trained)), trained)
    assert {name.partition("/")[2]: metrics[name] for name in metrics if name.partition("/")[2] in FIELDS} == {
        **{name: getattr(trained, name) for name in ("entropy", "reference_kl", "mismatch_kl")},
        **trained.metrics,
    }
    assert not {f"round/{name}" for name in FIELDS} & metrics.keys()


def test_the_view_of_a_job_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    console = screen()
    console.width = 200
    report = RoundReport(round=1, **training_metrics(replace(TRAINED, metrics={"clip_fraction_low": 0.0021})))
    console.print(runtime_view(RuntimeStatus(last_round=report), 9))
    assert "update  entropy 2.35, KL 0.0123 of engine and trainer, clipped 0.21 % low" in capsys.readouterr().out
    console.print(runtime_view(RuntimeStatus(last_round=RoundReport(round=1)), 9))
    assert "update" not in capsys.readouterr().out


def test_what_a_job_does_not_compute_is_a_gap_in_a_graph_and_no_zero() -> None:
    metrics = CoordinatorMetrics()
    metrics.round(RoundReport(round=1), replace(TRAINED, reference_kl=None, capped_fraction=0.0))
    shown = {
        name: metrics.registry.get_sample_value(f"rljob_coordinator_{name}") for name in ("reference_kl", "reward")
    }
    assert all(value is not None and math.isnan(value) for value in shown.values())
    assert metrics.registry.get_sample_value("rljob_coordinator_capped_fraction") == 0.0
