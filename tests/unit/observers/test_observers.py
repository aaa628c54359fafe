"""Observers: each against its offline or local form, and what one that is absent, broken or slow costs."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import InvalidSpec
from rljob_api.status import RoundReport, StatusWarning
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.coordinator.reporting.observer_feed import OBSERVER_FAILS, ObserverFeed, observer_journals
from rljob_runtime.coordinator.reporting.round_log import QUEUED_OTHERS
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.observers import JobEvent, ObservedJob, ObserverUnavailable
from rljob_runtime.observers.discovery import factory
from rljob_runtime.observers.round_metrics import round_metrics
from rljob_runtime.observers.sample_rows import COLUMNS, row_of
from rljob_runtime.observers.wandb_files import last_to_delete
from rljob_runtime.protocols import TrainReport
from rljob_runtime.samples import Sample, SampleOutcome
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
        if "round/reward" in metrics:
            self.rounds.append(number)

    def close(self) -> None:
        self.closed += 1


def feed_of(recorder: Recorder, folder: Path) -> ObserverFeed:
    return ObserverFeed(observer_journals(make_job(observers=[{"name": "mine"}]), folder, lambda name: recorder))


class Complete(Recorder):
    """An observer with all methods."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[Any] = []

    def _receive(self, what: Any) -> None:
        assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        self.received.append(what)

    def samples(self, number: int, records: Sequence[Mapping[str, Any]]) -> None:
        self._receive((number, [record["response"] for record in records]))

    def evaluated(self, result: Mapping[str, Any]) -> None:
        self._receive((result["name"], result["round"], result["average"]))

    def event(self, event: JobEvent) -> None:
        self._receive(event)


SAMPLE = Sample(
    round=3,
    prompt_id="0.1",
    sample=0,
    attempt=1,
    outcome=SampleOutcome.TRAINED,
    prompt=({"role": "user", "content": "2 + 2"},),
    response="four",
    reward=0.5,
    rewards={"right": 0.5},
)
EVALUATION = EvaluationResult("held-out", 3, 4, 20, 4, average=0.625, rules={"right": 0.625})
LOST = JobEvent("MachineLost", 3, "rollout-1: HeartbeatLost")


def pass_all(feed: ObserverFeed) -> None:
    feed.samples(3, [SAMPLE])
    for journal in feed.journals:
        journal.evaluated(EVALUATION)
    feed.event(LOST)


def test_samples_evaluations_and_events_reach_the_observer_in_order(tmp_path):
    recorder = Complete()
    feed = feed_of(recorder, tmp_path)
    pass_all(feed)
    (journal,) = feed.journals
    journal.close()
    assert recorder.received == [(3, ["four"]), ("held-out", 3, 0.625), LOST]
    assert journal.problem() is None


def test_an_observer_without_a_method_is_not_called_for_it(tmp_path):
    recorder = Recorder()
    feed = feed_of(recorder, tmp_path)
    pass_all(feed)
    (journal,) = feed.journals
    journal(report(1), TRAINED)
    journal.close()
    assert (journal.problem(), len(recorder.made), recorder.closed) == (None, 1, 1), "it has raised nothing"
    assert recorder.rounds == [1]


def test_a_failure_on_samples_and_events_warns_and_renews_the_observer(tmp_path):
    recorder = Complete()
    recorder.error = ConnectionError("the server refused the table")
    feed = feed_of(recorder, tmp_path)
    pass_all(feed)
    (journal,) = feed.journals
    journal._queue.join()
    warning = journal.problem()
    assert warning is not None
    assert warning.message.startswith(
        "1 samples and 1 evaluations and 1 events are not in observer mine (the server refused the table). Training"
    )
    assert (len(recorder.made), recorder.closed) == (3, 3)
    recorder.error = None
    pass_all(feed)
    journal._queue.join()
    assert journal.problem() is None
    assert len(recorder.received) == 3
    journal.close()


def test_a_slow_observer_holds_few_samples_and_leaves_room_for_rounds(tmp_path):
    recorder = Complete()
    recorder.gate.clear()
    feed = feed_of(recorder, tmp_path)
    began = time.monotonic()
    for _ in range(200):
        pass_all(feed)
    (journal,) = feed.journals
    told = [journal(report(number), TRAINED) for number in range(100)]
    assert time.monotonic() - began < 10, "nothing waits for it"
    assert journal.waiting == sum(QUEUED_OTHERS.values()) + 100
    (warning,) = {one.message for one in told if one is not None}
    assert "samples" in warning, "what is missing is named until some are accepted again"
    assert "rounds" not in warning, "and no round is"
    recorder.gate.set()
    journal.close()
    assert len(recorder.rounds) == 100
    assert sum(one == LOST for one in recorder.received) == QUEUED_OTHERS["events"]


def test_samples_are_rows_of_a_table():
    row = dict(zip(COLUMNS, row_of(SAMPLE.to_dict()), strict=True))
    assert (row["prompt"], row["response"], row["rewards"], row["reason"]) == ("user: 2 + 2", "four", "right 0.5", None)
    assert row_of({}) == ["", None, None, "", None, None, None, None, None]


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
    (journal,) = feed_of(recorder, tmp_path).journals
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
    (journal,) = feed_of(recorder, tmp_path).journals
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
    observer.samples(3, [SAMPLE.to_dict()])
    observer.event(LOST)
    observer.close()
    (file,) = tmp_path.rglob("run-uid-1.wandb")
    # W&B has no public reader; its records hold names and values as text. Its process writes them after `finish`.
    deadline = time.monotonic() + 60
    while b"MachineLost: rollout-1" not in (content := file.read_bytes()):
        assert time.monotonic() < deadline, "the event is not in the file"
        time.sleep(0.1)
    places = [content.index(value) for value in (b"uid-1", b"0.375", b"0.625")]
    assert places == sorted(places)
    assert content.count(b"round/reward") >= 2
    (table,) = tmp_path.rglob("samples_*.table.json")
    assert json.loads(table.read_text())["data"][0][:3] == ["user: 2 + 2", "four", 0.5]
    with pytest.raises(ValueError, match="cannot set id"):
        WandbRun(JOB, {"id": "other"})


def test_a_wrong_key_of_wandb_is_a_warning_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    (journal,) = observer_journals(make_job(observers=[{"name": "wandb"}]), tmp_path)
    assert journal(report(1), TRAINED) is None
    warning = journal.flush(60)
    assert warning is not None
    assert warning.reason == OBSERVER_FAILS
    assert re.fullmatch(
        r"1 rounds are not in observer wandb \(W&B refuses the key in WANDB_API_KEY: WANDB_API_KEY invalid: API key "
        r"must have .*; set WANDB_API_KEY to a valid one\)\. Training continues\. Check .*",
        warning.message,
    ), warning.message
    journal.close()


ANSWERED = "Failed to get resume status for run u: returned error {}"


@pytest.mark.parametrize(
    ("kind", "text", "about_the_key"),
    [
        ("AuthenticationError", "invalid", True),
        ("UsageError", "No API key configured. Use `wandb login` to log in.", True),
        ("CommError", ANSWERED.format('401: {"errors": [{"message": "user is not logged in"}]}'), True),
        ("CommError", ANSWERED.format("403: permission denied"), True),
        ("CommError", ANSWERED.format("503: try later"), False),
        ("UsageError", "Invalid project name 'a/b'", False),
    ],
)
def test_errors_of_wandb_about_the_key_name_its_variable(kind: str, text: str, about_the_key: bool):
    """Its server's answers have one type, and so have its user's mistakes."""
    from wandb import errors

    from rljob_runtime.observers.wandb_run import KeyRefused, _key_named

    error = getattr(errors, kind)(text)
    with pytest.raises(KeyRefused if about_the_key else type(error)) as raised, _key_named():
        raise error
    wanted = f"W&B refuses the key in WANDB_API_KEY: {error}; set WANDB_API_KEY to a valid one"
    assert str(raised.value) == (wanted if about_the_key else str(error))


def test_tables_of_wandb_stay_for_as_many_rounds_as_samples(tmp_path):
    """An offline run keeps every table, and two copies of it. W&B writes them while the table is logged."""
    from rljob_runtime.observers.wandb_run import WandbRun

    job = replace(JOB, folder=tmp_path, spec={**JOB.spec, "samples": {"keepRounds": 3}})
    kept: list[list[int]] = []
    for coordinator in range(2):
        observer = WandbRun(job, {"mode": "offline"})
        for number in range(coordinator * 8, coordinator * 8 + 8):
            sample = replace(SAMPLE, response=f"answer {number} " * 100)
            observer.samples(number, [sample.to_dict()])
            texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".wandb"]
            kept.append(sorted(n for n in range(16) for text in texts if f"answer {n} " in text))
        observer.close()
    assert kept == [sorted([*range(max(0, last - 2), last + 1)] * 3) for last in range(16)]
    assert "WANDB_DATA_DIR" not in os.environ


@given(st.lists(st.integers(0, 20), max_size=20, unique=True), st.integers(1, 5))
def test_the_newest_tables_stay(times: list[int], keep: int):
    last = last_to_delete([(float(time), f"table-{time}") for time in times], keep)
    left = [time for time in times if last is None or time > last]
    assert sorted(left) == sorted(times)[-keep:]


def test_mlflow_keeps_one_run_over_two_coordinators(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    from rljob_runtime.observers.mlflow_run import MlflowRun

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = {"trackingUri": f"file://{tmp_path}", "tags": {"team": "a"}}
    for number in (1, 2):
        observer = MlflowRun(JOB, config)
        observer.round(number, {"round/reward": number / 4})
        observer.samples(number, [SAMPLE.to_dict()])
        observer.event(LOST)
        observer.close()
    client = MlflowClient(config["trackingUri"])  # type: ignore[arg-type]
    experiment = client.get_experiment_by_name("rljob")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params == {"spec.rounds": "3", "spec.model.source": "package://rljob/toy"}
    assert (run.data.tags["team"], run.info.run_name, run.info.status) == ("a", "demo", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "round/reward")
    assert [(one.step, one.value) for one in history] == [(1, 0.25), (2, 0.5)]
    assert run.data.tags["rljob.event.MachineLost"] == "round 3: rollout-1: HeartbeatLost"
    assert len(client.list_artifacts(run.info.run_id, "samples")) == 2
    (artifact,) = tmp_path.rglob("round-000002.json")
    assert json.loads(artifact.read_text())["response"] == ["four"]


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


def test_opentelemetry_emits_events():
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from rljob_runtime.observers.otel_metrics import OtelMetrics

    events = InMemoryLogRecordExporter()
    observer = OtelMetrics(JOB, {}, InMemoryMetricReader(), events)
    observer.event(LOST)
    observer.close()
    (record,) = events.get_finished_logs()
    assert (record.log_record.event_name, record.log_record.body) == ("rljob.MachineLost", LOST.message)
    assert dict(record.log_record.attributes or {}) == {"rljob.round": 3}
    assert record.resource.attributes["rl.run.id"] == "uid-1"


def test_a_warning_about_an_observer_ends_with_its_cause():
    reported: dict[str, Any] = {}
    reporter = SimpleNamespace(timeline=Timeline(), problem=reported.__setitem__)
    warnings = [StatusWarning(reason=OBSERVER_FAILS, message="…"), None]
    parts: list[Any] = [None] * 9
    parts[3] = reporter
    context = CoordinatorContext(*parts, observers=[lambda report, trained: warnings.pop(0)])
    context.notify_closed(report(1), TRAINED)
    assert reported[OBSERVER_FAILS] is not None
    context.notify_closed(report(2), TRAINED)
    assert reported[OBSERVER_FAILS] is None


def test_two_observers_of_one_name_are_refused():
    with pytest.raises(InvalidSpec, match=r"spec.observers\[1\].name: 'a' must be unique in spec.observers"):
        make_job(observers=[{"name": "a"}, {"name": "a"}])
