"""The log of rounds: whatever a report holds is written, and what is a figure is a curve."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_api.status import RoundReport
from rljob_runtime.coordinator.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.protocols import TrainReport
from rljob_runtime.coordinator.roundlog import RoundLog, TensorBoard

TRAINED = TrainReport(4, 0.5, 1.25, 1e-5, 1e-4, 0.01, 2.0, 4096, 3.5, capped_fraction=0.25, effective_sample_size=0.75)


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
    assert not {f"round/{name}" for name in ("lending", "plan", "kind", "round", "layout_forecasts")} & curves
    assert "train/step" not in curves
    line = (tmp_path / "rounds.jsonl").read_text()
    assert '"lending": "NoGain"' in line
    assert '"layoutForecasts": [{"tensorParallelSize": 3, "seconds": 0.5}]' in line


def test_what_older_weights_did_is_in_the_metrics(report):
    metrics = CoordinatorMetrics()
    metrics.round(report, TRAINED)
    metrics.round(report.model_copy(update={"launched_responses": 0, "responses": 64}), TRAINED)
    for name, value in (("mismatch_kl", 1e-4), ("capped_fraction", 0.25), ("effective_sample_size", 0.75)):
        assert metrics.registry.get_sample_value(f"rljob_coordinator_{name}") == value
