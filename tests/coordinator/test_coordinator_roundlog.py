"""The log of rounds: whatever a report holds is written, and what is a figure is a curve."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_api.status import RoundReport
from rljob_runtime.coordinator.protocols import TrainReport
from rljob_runtime.coordinator.roundlog import RoundLog, TensorBoard

TRAINED = TrainReport(4, 0.5, 1.25, 1e-5, 1e-4, 0.01, 2.0, 4096, 3.5)


@pytest.fixture
def report():
    """A report with every field set, whatever fields there will be."""
    schema = RoundReport.model_json_schema(by_alias=False)
    enums = {f"#/$defs/{name}": found["enum"][0] for name, found in schema.get("$defs", {}).items() if "enum" in found}

    def sample(field):
        kind = next(kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null")
        return (
            enums[kind["$ref"]] if "$ref" in kind else {"integer": 3, "number": 0.5, "string": "NoGain"}[kind["type"]]
        )

    return RoundReport(**{name: sample(field) for name, field in schema["properties"].items()})


def test_every_field_may_be_set(report, tmp_path):
    board = TensorBoard(tmp_path / "board")
    for observer in (RoundLog(tmp_path), board):
        observer(report, TRAINED)
    board.close()
    written = EventAccumulator(str(tmp_path / "board")).Reload()
    curves = set(written.Tags()["scalars"]) | set(written.Tags()["tensors"])
    assert {"round/reward", "round/tokens", "train/loss", "train/tokens"} <= curves
    assert not {"round/lending", "round/plan", "round/kind", "round/round", "train/step"} & curves
    assert '"lending": "NoGain"' in (tmp_path / "rounds.jsonl").read_text()
