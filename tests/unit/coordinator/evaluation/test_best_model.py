"""The best model in whole simulated jobs: it has the weights of the best evaluation, whatever interrupts the job."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from rljob_api.evaluation_metric import EvaluationMetric
from rljob_api.spec.training import Mode
from rljob_runtime.coordinator.trainer.best_model import PROBLEM
from rljob_runtime.evaluation.history import best_of
from rljob_runtime.simulator.core.events import Event, Trained
from tests.support.crashes import play_through
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job

MODES = pytest.mark.parametrize("mode", list(Mode))
ONE_MODE = pytest.mark.parametrize("mode", [Mode.ASYNCHRONOUS, *slow(Mode.ON_POLICY)])
"""For tests that play a job many times."""
CHECK = {"name": "check", "everyRounds": 1, "responsesPerPrompt": 2, "maxPrompts": 3}
KEEP: dict[str, Any] = {"emptyDir": {}, "everyRounds": 2, "keepBest": {"evaluation": "check"}}


def stage_of(path: Path, mode: Mode, rounds: int = 5, **checkpoint: Any) -> Stage:
    return Stage(path, job(rounds=rounds, mode=mode, evaluation=[CHECK], checkpoint=KEEP | checkpoint))


def assert_best(
    stage: Stage, metric: EvaluationMetric = EvaluationMetric.AVERAGE, without: Collection[int] = ()
) -> None:
    """The exported model has the weights of the history that the job ended with, after the best round of it.

    `without` are the rounds whose models are not kept.
    """
    results = {one.round: one for one in stage.evaluated if one.round not in without}
    best = best_of(list(results.values()), metric)
    assert best is not None
    assert stage.world.disk.best is not None
    step, content = stage.world.disk.best
    assert step == best.round
    last = max(stage.world.disk.checkpoints)
    assert content == stage.world.disk.checkpoints[last][:step]
    (status,) = stage.control.reports[-1:]
    assert status.best_model is not None
    assert status.best_model.round == step
    assert without or status.evaluations[0].best.round == step


@MODES
@pytest.mark.parametrize("metric", list(EvaluationMetric))
def test_the_best_model_is_exported(tmp_path: Path, mode: Mode, metric: EvaluationMetric) -> None:
    stage = stage_of(tmp_path / "state.db", mode, keepBest={"evaluation": "check", "metric": metric.value})
    models: list[int] = []
    stage.watchers.append(lambda event: models.append(len(stage.world.disk.models)))
    stage.play()
    assert_best(stage, metric)
    assert 1 < max(models) < 6, "worse ones are deleted while the job runs"
    assert len(stage.world.disk.models) == 1, "and at its end"


@MODES
def test_a_job_without_keep_best_writes_no_model(tmp_path: Path, mode: Mode) -> None:
    stage = Stage(tmp_path / "state.db", job(rounds=2, mode=mode, evaluation=[CHECK]))
    stage.play()
    assert (stage.world.disk.models, stage.world.disk.best) == ({}, None)


@ONE_MODE
@pytest.mark.parametrize("first", [10, *slow(29)])
def test_a_later_coordinator_exports_the_same_kind_of_best(tmp_path: Path, mode: Mode, first: int) -> None:
    again = 0
    for moment in range(first, 200, 38):
        stage = stage_of(tmp_path / f"{moment}.db", mode, rounds=4)
        again += play_through(stage, [moment]) - 1
        assert_best(stage)
    assert again > 2, "most of these moments are within the run"


@MODES
@pytest.mark.parametrize("lost_after", [3, 4, 5])
def test_models_of_abandoned_weights_do_not_win(tmp_path: Path, mode: Mode, lost_after: int) -> None:
    """The trainer is lost after an update without a checkpoint, and trains it again from other weights."""
    stage = stage_of(tmp_path / "state.db", mode, everyRounds=2)
    lost: list[int] = []

    def lose(event: Event) -> None:
        if isinstance(event, Trained) and event.step == lost_after and not lost:
            lost.append(event.step)
            stage.world.process("trainer").kill()

    stage.watchers.append(lose)
    stage.play()
    assert lost
    assert_best(stage)


@MODES
def test_a_full_disk_costs_a_candidate_and_a_warning(tmp_path: Path, mode: Mode) -> None:
    """The candidate is the best one, as a run without the fault shows."""
    before = stage_of(tmp_path / "before.db", mode, everyRounds=100)
    before.play()
    assert before.world.disk.best is not None
    lost = before.world.disk.best[0]
    stage = stage_of(tmp_path / "state.db", mode, everyRounds=100)

    def fill(event: Event) -> None:
        if isinstance(event, Trained):
            stage.world.disk.full = int(event.step == lost)

    stage.watchers.append(fill)
    stage.play()
    assert lost not in stage.world.disk.models
    reasons = [{warning.reason for warning in report.warnings} for report in stage.control.reports]
    assert any(PROBLEM in found for found in reasons)
    assert PROBLEM not in reasons[-1]
    candidates = [one for one in stage.evaluated if one.round != lost]
    best = best_of(candidates, EvaluationMetric.AVERAGE)
    assert best is not None
    assert stage.world.disk.best is not None
    assert stage.world.disk.best[0] == best.round


def reasons_of(stage: Stage) -> list[set[str]]:
    return [{warning.reason for warning in report.warnings} for report in stage.control.reports]


@MODES
@pytest.mark.parametrize("room", [1, 2])
def test_models_give_way_to_a_checkpoint(tmp_path: Path, mode: Mode, room: int) -> None:
    """The volume has no room for a checkpoint beside all models that a return to an earlier round may need."""
    stage = stage_of(tmp_path / "state.db", mode, rounds=8, everyRounds=2)
    stage.world.disk.room = room
    models: list[int] = []
    stage.watchers.append(lambda event: models.append(len(stage.world.disk.models)))
    stage.play()
    assert sorted(stage.world.disk.checkpoints) == [0, 2, 4, 6, 8]
    assert max(models) == room + 1, "the case is there"
    reasons = reasons_of(stage)
    assert any(PROBLEM in found for found in reasons)
    assert not any("CheckpointFailed" in found for found in reasons)
    assert stage.world.disk.best is not None


@MODES
def test_the_best_model_gives_way_to_nothing(tmp_path: Path, mode: Mode) -> None:
    """No checkpoint has room beside one model: the best stays, the others go, and training continues."""
    stage = stage_of(tmp_path / "state.db", mode, rounds=6, everyRounds=2)
    models: list[tuple[int, ...]] = []

    def fill(event: Event) -> None:
        if isinstance(event, Trained):
            stage.world.disk.room = 2 if event.step == 6 else 0
        models.append(tuple(sorted(stage.world.disk.models)))

    stage.watchers.append(fill)
    stage.play()
    refused = [("CheckpointFailed" in found) for found in reasons_of(stage)]
    assert any(refused)
    assert not refused[-1]
    assert 2 not in stage.world.disk.checkpoints
    best = stage.world.disk.best
    assert best is not None
    assert best[0] in (0, 6)
    assert all(0 in found for found in models[models.index((0,)) : -1]), "the only one with a result"


@MODES
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_trainer_that_refuses_to_delete_models_does_not_end_the_job(tmp_path: Path, mode: Mode, calls: int) -> None:
    stage = stage_of(tmp_path / "state.db", mode, rounds=6, everyRounds=2)
    stage.world.disk.unreadable = calls
    stage.play()
    assert stage.world.disk.unreadable == 0
    reasons = reasons_of(stage)
    assert any(PROBLEM in found for found in reasons)
    assert PROBLEM not in reasons[-1]
    assert_best(stage)


@MODES
def test_abandoned_models_that_cannot_be_deleted_do_not_win(tmp_path: Path, mode: Mode) -> None:
    """After a return to an earlier round its later models stay on the volume, and cannot be written again."""
    stage = stage_of(tmp_path / "state.db", mode, rounds=6, everyRounds=100)
    lost: list[int] = []

    def lose(event: Event) -> None:
        if not isinstance(event, Trained) or event.step != 5:
            return
        if lost:
            stage.world.disk.unreadable, stage.world.disk.room = 0, None
        else:
            lost.append(event.step)
            stage.world.disk.unreadable, stage.world.disk.room = 1000, -1
            stage.world.process("trainer").kill()

    stage.watchers.append(lose)
    stage.play()
    assert lost
    best = best_of(stage.evaluated, EvaluationMetric.AVERAGE)
    assert best is not None
    assert best.round == 2, "an abandoned model would win"
    assert_best(stage, without={1, 2, 3, 4})
