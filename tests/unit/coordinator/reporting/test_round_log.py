"""The log of rounds: what a report holds is written, what is a figure is a curve, and no volume holds a round up."""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_api.status import FinishedOutcome, RoundReport, StatusWarning
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.reporting.round_log import RoundJournal, RoundLog, TensorBoard
from rljob_runtime.coordinator.samples.writer import SAMPLES_NOT_WRITTEN
from rljob_runtime.protocols import PromptsNotUsable, TrainReport
from tests.support.paths import ROOT
from tests.support.simulated_job import Stage, job

TRAINED = TrainReport(
    4,
    0.5,
    1.25,
    1e-5,
    1e-4,
    0.01,
    2.0,
    4096,
    3.5,
    capped_fraction=0.25,
    effective_sample_size=0.75,
    reference_kl=0.125,
    metrics={"clip_fraction_low": 0.003, "gate": 1.5},
)


@pytest.fixture
def report():
    """A report with every field set, whatever fields there will be."""
    schema = RoundReport.model_json_schema(by_alias=False)

    def sample(field):
        kind = next(kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null")
        kind = schema["$defs"][kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind
        if "enum" in kind:
            return kind["enum"][0]
        if kind["type"] == "array":
            return (sample(kind["items"]),)
        if kind["type"] == "object":
            return {name: sample(inner) for name, inner in kind["properties"].items()}
        return {"integer": 3, "number": 0.5, "string": "NoGain"}[kind["type"]]

    return RoundReport.model_validate(sample(schema))


def test_every_field_may_be_set(report, tmp_path):
    board = TensorBoard(tmp_path / "board")
    for observer in (RoundLog(tmp_path), board):
        observer(report, TRAINED)
    board.close()
    written = EventAccumulator(str(tmp_path / "board")).Reload()
    curves = set(written.Tags()["scalars"]) | set(written.Tags()["tensors"])
    assert {"round/reward", "round/tokens", "train/loss", "train/tokens"} <= curves
    assert {"train/mismatch_kl", "train/capped_fraction", "train/effective_sample_size"} <= curves
    assert {"train/reference_kl", "train/entropy", "train/clip_fraction_low", "train/gate"} <= curves
    assert not {f"round/{name}" for name in ("loan", "plan", "kind", "round", "layout_forecasts")} & curves
    assert "train/step" not in curves
    line = (tmp_path / "rounds.jsonl").read_text()
    assert '"metrics": {"clip_fraction_low": 0.003, "gate": 1.5}' in line
    assert '"loan": {"state": "Loaned", "reason": "NoGain"}' in line
    assert '"layoutForecasts": [{"tensorParallelSize": 3, "seconds": 0.5}]' in line


def test_metrics_of_the_loss_are_in_the_metrics(report):
    metrics = CoordinatorMetrics()
    metrics.round(report, TRAINED)
    for name, value in TRAINED.metrics.items():
        assert metrics.registry.get_sample_value("rljob_coordinator_loss_metric", {"name": name}) == value


def test_what_older_weights_did_is_in_the_metrics(report):
    metrics = CoordinatorMetrics()
    metrics.round(report, TRAINED)
    metrics.round(report.model_copy(update={"launched_responses": 0, "responses": 64}), TRAINED)
    for name, value in (
        ("mismatch_kl", 1e-4),
        ("capped_fraction", 0.25),
        ("effective_sample_size", 0.75),
        ("reference_kl", 0.125),
        ("entropy", 2.0),
    ):
        assert metrics.registry.get_sample_value(f"rljob_coordinator_{name}") == value


def journal_of(folder, **kept):
    return RoundJournal({"rounds.jsonl": lambda: RoundLog(folder), "tensorboard/": lambda: TensorBoard(folder)}, **kept)


def rounds_in(folder):
    """In the log, and in TensorBoard's first curve."""
    lines = [json.loads(line)["round"] for line in (folder / "rounds.jsonl").read_text().splitlines()]
    written = EventAccumulator(str(folder)).Reload()
    return lines, [event.step for event in written.Tensors("round/reward")]


def play_on_a_full_disk(folder):
    """In a process of its own, whose files cannot grow for a while."""
    journal, told = journal_of(folder), []

    def rounds(*numbers):
        for number in numbers:
            told.append(journal(RoundReport(round=number, reward=0.5), TRAINED))
        while journal.waiting:
            time.sleep(0.01)

    rounds(1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    rounds(2, 3)
    rounds(4)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    rounds(5)
    rounds(6)
    journal.close()
    print(json.dumps([problem and problem.message for problem in told]))


def test_a_full_disk_costs_lines_and_they_come_back_with_room(tmp_path):
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import pathlib; "
    program += f"import {__name__} as t; t.play_on_a_full_disk(pathlib.Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told[0] is None
    assert told[3].startswith("2 rounds are not in rounds.jsonl ("), told
    assert "; 2 rounds are not in tensorboard/ (" in told[3]
    assert told[5] is None, "there is room again"
    assert rounds_in(tmp_path) == ([1, 5, 6], [1, 5, 6])
    assert all(file.stat().st_size for file in tmp_path.iterdir()), "tries leave no empty files"


def test_a_volume_that_does_not_answer_delays_no_round(tmp_path):
    os.mkfifo(tmp_path / "rounds.jsonl")  # opening it waits for a reader
    journal, told = journal_of(tmp_path, most=2), []
    began = time.monotonic()
    for number in range(1, 6):
        told.append(journal(RoundReport(round=number), TRAINED))
        time.sleep(0.05)
    journal.close(0.2)
    assert time.monotonic() - began < 30
    assert [problem is None for problem in told] == [True, True, True, False, False]
    assert told[-1].reason == "RoundsNotLogged"
    assert told[-1].message.startswith("2 rounds are not in rounds.jsonl, tensorboard/: it does not answer")
    # The thread is let go, for the other tests' sake.
    reader = os.open(tmp_path / "rounds.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    journal.close(10)
    os.close(reader)
    assert not journal._thread.is_alive()


def test_what_is_not_written_at_the_jobs_end_is_counted(tmp_path):
    os.mkfifo(tmp_path / "rounds.jsonl")  # opening it waits for a reader
    journal = journal_of(tmp_path)
    assert journal.flush(0) is None, "nothing waits"
    for number in (1, 2):
        assert journal(RoundReport(round=number), TRAINED) is None
    began = time.monotonic()
    warning = journal.flush(0.2)
    assert time.monotonic() - began < 30
    assert warning.reason == "RoundsNotLogged"
    assert warning.message == (
        "2 records at the end are not in rounds.jsonl, tensorboard/: it does not answer. Training continues. Check "
        "that the job's volume has space and responds."
    )
    reader = os.open(tmp_path / "rounds.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    assert "at the end" not in journal.flush(10).message, "the thread goes on"
    os.close(reader)
    journal.close(10)


@pytest.mark.parametrize("fails", [False, True])
def test_warnings_of_the_end_are_in_the_last_status(tmp_path, fails, caplog):
    """A job of one round gets no later chance to warn."""

    async def broken():
        raise KeyError("a bug of the observer's")

    async def slow():
        await asyncio.sleep(7.0)
        return StatusWarning(reason=SAMPLES_NOT_WRITTEN, message="1 file is missing")

    async def fine():
        return None

    stage = Stage(tmp_path / "state.db", job=job(rounds=1), end_observers=[fine, broken, slow])
    if fails:
        stage.on_opening = lambda: (_ for _ in ()).throw(PromptsNotUsable("there are none"))
    outcome = FinishedOutcome.FAILED if fails else FinishedOutcome.COMPLETE
    assert stage.play().outcome is outcome
    last = stage.control.reports[-1]
    assert last.finished.outcome is outcome
    assert [(one.reason, one.message) for one in last.warnings] == [(SAMPLES_NOT_WRITTEN, "1 file is missing")]
    assert "a bug of the observer's" in caplog.text


def test_an_observer_that_fails_ends_no_round(tmp_path, caplog):
    def broken(report, trained):
        raise KeyError("a bug of the observer's")

    stage = Stage(tmp_path / "state.db", job=job(rounds=2), observers=[broken])
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    assert stage.rounds == [1, 2], "those after it hear of the round all the same"
    assert "a bug of the observer's" in caplog.text


def written(folder):
    return [(line["round"], line["training"]["loss"]) for line in map(json.loads, (folder / "rounds.jsonl").open())]


def test_a_round_that_runs_again_has_one_line(tmp_path):
    def play(log, number, loss):
        log(RoundReport(round=number), replace(TRAINED, loss=loss))

    first = RoundLog(tmp_path)
    for number in (1, 2, 3, 4):
        play(first, number, 0.1)
    play(first, 3, 0.2)
    assert written(tmp_path) == [(1, 0.1), (2, 0.1), (3, 0.2)]
    second = RoundLog(tmp_path)
    play(second, 2, 0.3)
    play(second, 3, 0.3)
    assert written(tmp_path) == [(1, 0.1), (2, 0.3), (3, 0.3)]


def test_a_line_that_a_crash_has_cut_goes(tmp_path):
    RoundLog(tmp_path)(RoundReport(round=1), TRAINED)
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "kin')
    RoundLog(tmp_path)(RoundReport(round=2), TRAINED)
    assert [number for number, _ in written(tmp_path)] == [1, 2]
