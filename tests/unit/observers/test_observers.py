"""Observers: each against its offline or local form, and what one that is absent, broken or slow costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api import InvalidSpec
from rljob_api.status import RoundReport
from rljob_runtime.coordinator.reporting.observer_feed import OBSERVER_FAILS, observer_journals
from rljob_runtime.observers import ObservedJob, ObserverUnavailable
from rljob_runtime.observers.discovery import factory
from rljob_runtime.observers.round_metrics import round_metrics
from rljob_runtime.protocols import TrainReport
from tests.support.operator.harness import make_job

JOB = ObservedJob("demo", "lab", "uid-1", {"rounds": 3, "model": {"source": "package://rljob/toy"}}, Path("/nowhere"))
TRAINED = TrainReport(
    step=1,
    loss=0.5,
    grad_norm=2.0,
    learning_rate=1e-4,
    mismatch_kl=0.0,
    clip_fraction=0.1,
    entropy=1.5,
    tokens=99,
    seconds=2.0,
)


def report(number: int, reward: float = 0.25) -> RoundReport:
    return RoundReport(round=number, reward=reward, responses=64, plan="plain")


def test_a_round_is_numbers_by_name():
    metrics = round_metrics(report(3), TRAINED)
    assert metrics["round/reward"] == 0.25
    assert metrics["round/responses"] == 64.0
    assert metrics["train/entropy"] == 1.5
    assert "round/plan" not in metrics
    assert "round/round" not in metrics


def test_an_observer_that_is_not_installed_names_those_that_are():
    with pytest.raises(ObserverUnavailable, match=r"no observer 'none' is installed; installed are: mlflow, open"):
        factory("none")


@pytest.mark.parametrize("name", ["wandb", "mlflow", "opentelemetry"])
def test_ours_are_found_by_their_names(name):
    assert callable(factory(name))


def test_an_observer_without_its_library_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "rljob_runtime.observers.wandb_run", raising=False)
    with pytest.raises(ObserverUnavailable, match=r"pip install 'rljob\[wandb\]' in the image"):
        factory("wandb")


class Recorder:
    """An observer that records, raises or blocks."""

    made: list[tuple[ObservedJob, Mapping[str, Any]]]

    def __init__(self) -> None:
        self.made = []
        self.rounds: list[int] = []
        self.closed = 0
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, job: ObservedJob, config: Mapping[str, Any]) -> Recorder:
        self.made.append((job, config))
        return self

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        assert metrics["round/reward"] == 0.25
        self.rounds.append(number)

    def close(self) -> None:
        self.closed += 1


def test_rounds_reach_the_observer_with_job_and_config(tmp_path):
    recorder = Recorder()
    job = make_job(observers=[{"name": "mine", "config": {"a": 1}}])
    (journal,) = observer_journals(job, tmp_path, lambda name: recorder)
    for number in (1, 2):
        assert journal(report(number), TRAINED) is None
    journal.close()
    ((observed, config),) = recorder.made
    assert (observed.name, observed.uid, observed.folder, config) == ("demo", "11111111-2222", tmp_path, {"a": 1})
    assert observed.spec["rounds"] == 3
    assert (recorder.rounds, recorder.closed) == ([1, 2], 1)


def test_a_failing_observer_costs_a_warning_and_recovers(tmp_path):
    recorder = Recorder()
    recorder.error = ConnectionError("the server refused the key")
    (journal,) = observer_journals(make_job(observers=[{"name": "mine"}]), tmp_path, lambda name: recorder)
    journal(report(1), TRAINED)
    journal._queue.join()
    warning = journal.problem()
    assert warning is not None
    assert warning.reason == OBSERVER_FAILS
    assert warning.message.startswith("1 rounds are not in observer mine (the server refused the key). Training cont")
    recorder.error = None
    journal(report(2), TRAINED)
    journal._queue.join()
    assert journal.problem() is None
    journal.close()
    assert recorder.rounds == [2]


def test_a_blocked_observer_blocks_no_round(tmp_path):
    recorder = Recorder()
    recorder.gate.clear()
    (journal,) = observer_journals(make_job(observers=[{"name": "mine"}]), tmp_path, lambda name: recorder)
    warnings = [journal(report(number), TRAINED) for number in range(1, 400)]
    last = warnings[-1]
    assert last is not None
    assert "rounds are not in observer mine: it does not answer" in last.message
    recorder.gate.set()
    journal.close()


def test_wandb_offline_logs_a_run_under_the_jobs_uid(tmp_path):
    from rljob_runtime.observers.wandb_run import WandbRun

    observer = WandbRun(replace(JOB, folder=tmp_path), {"mode": "offline", "project": "p"})
    for number in (1, 2):
        observer.round(number, {"round/reward": number / 4 + 0.125})
    observer.close()
    (file,) = tmp_path.rglob("run-uid-1.wandb")
    # W&B has no public reader; its records hold names and values as text. Its process writes them after `finish`.
    deadline = time.monotonic() + 60
    while b"0.625" not in (content := file.read_bytes()):
        assert time.monotonic() < deadline, "the second round is not in the file"
        time.sleep(0.1)
    places = [content.index(value) for value in (b"uid-1", b"0.375", b"0.625")]
    assert places == sorted(places)
    assert content.count(b"round/reward") >= 2
    with pytest.raises(ValueError, match="cannot set id"):
        WandbRun(JOB, {"id": "other"})


def test_mlflow_keeps_one_run_over_two_coordinators(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    from rljob_runtime.observers.mlflow_run import MlflowRun

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = {"trackingUri": f"file://{tmp_path}", "tags": {"team": "a"}}
    for number in (1, 2):
        observer = MlflowRun(JOB, config)
        observer.round(number, {"round/reward": number / 4})
        observer.close()
    client = MlflowClient(config["trackingUri"])  # type: ignore[arg-type]
    experiment = client.get_experiment_by_name("rljob")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params == {"spec.rounds": "3", "spec.model.source": "package://rljob/toy"}
    assert (run.data.tags["team"], run.info.run_name, run.info.status) == ("a", "demo", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "round/reward")
    assert [(one.step, one.value) for one in history] == [(1, 0.25), (2, 0.5)]


def test_opentelemetry_exports_the_last_round_with_the_proposed_names():
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from rljob_runtime.observers.otel_metrics import OtelMetrics

    reader = InMemoryMetricReader()
    observer = OtelMetrics(JOB, {"attributes": {"team": "a"}}, reader)
    for number in (1, 2):
        observer.round(number, {"round/reward": number / 4, "train/entropy": 1.5})
    data = reader.get_metrics_data()
    assert data is not None
    (resource,) = data.resource_metrics
    assert resource.resource.attributes["rl.run.id"] == "uid-1"
    assert resource.resource.attributes["team"] == "a"
    values = {
        metric.name: point.value  # type: ignore[union-attr]
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert values == {"rl.reward.mean": 0.5, "rljob.train.entropy": 1.5, "rljob.round": 2.0}
    observer.close()


def test_two_observers_of_one_name_are_refused():
    with pytest.raises(InvalidSpec, match=r"spec.observers\[1\].name: 'a' must be unique in spec.observers"):
        make_job(observers=[{"name": "a"}, {"name": "a"}])
