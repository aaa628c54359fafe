"""Names of metrics that people and environments choose: no observer's server refuses a round for one of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import EpisodesReport, RoundReport
from rljob_runtime.observers.protocol import ObservedJob
from rljob_runtime.observers.round_metrics import round_metrics, spelled
from rljob_runtime.protocols import TrainReport

TRAINED = TrainReport(3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0, metrics={"my loss (raw)": 2.0})
ODD = ("acc@1", "acc_1", "Acc_1", "score", "score/easy", "x/../y", "Länge", ".", "", "\n", "准确", "格式")
EPISODES = EpisodesReport(
    failed_attempts=[{"part": "tool server", "attempts": 2}],
    metrics=[{"environment": "calc", "name": name, "mean": 0.5, "episodes": 4} for name in ODD],
)
METRICS = round_metrics(RoundReport(round=3, episodes=EPISODES), TRAINED)
JOB = ObservedJob("demo", "team", "uid-1", {}, Path("/nowhere"))


@given(st.text())
def test_a_name_has_letters_and_digits_and_is_no_folder(name: str) -> None:
    found = spelled(name)
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", found)
    assert found not in (".", "..")
    assert spelled(found) == found
    assert len(found) <= max(1, len(name))


def test_what_is_named_well_keeps_its_name() -> None:
    assert spelled("exact-match_2.0") == "exact-match_2.0"
    assert METRICS["train/my_loss__raw_"] == 2.0
    assert METRICS["episodes/failed/tool_server"] == 2.0
    assert {"environment/calc/Acc_1", "environment/calc/score"} < METRICS.keys()


def test_each_metric_of_an_environment_has_a_name_of_its_own() -> None:
    """Also where names differ in their case only, or in characters that are replaced."""
    names = [name.lower() for name in METRICS if name.startswith("environment/")]
    assert len(set(names)) == len(ODD)


def test_mlflow_takes_a_round_with_any_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from rljob_runtime.observers.mlflow_run import MlflowRun

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    observer = MlflowRun(JOB, {"trackingUri": f"file://{tmp_path}"})
    observer.round(3, METRICS)
    observer.close()
    client = MlflowClient(f"file://{tmp_path}")
    experiment = client.get_experiment_by_name("rljob")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics == METRICS


def test_opentelemetry_takes_a_round_with_any_names() -> None:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from rljob_runtime.observers.otel_metrics import OtelMetrics, named

    reader = InMemoryMetricReader()
    observer = OtelMetrics(JOB, {}, reader)
    observer.round(3, METRICS)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        one.name for resource in data.resource_metrics for scope in resource.scope_metrics for one in scope.metrics
    }
    # The SDK takes no capital letters.
    assert found == {"rljob.round", *(named(name).lower() for name in METRICS)}
    observer.close()
