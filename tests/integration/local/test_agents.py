"""An agent's job on this machine: gateway, runner, tool, engine and trainer are the real ones."""

from __future__ import annotations

import json
import sqlite3

import pytest
import yaml
from typer.testing import CliRunner

from rljob_api import load
from rljob_api.status import FinishedOutcome
from rljob_runtime.cli import app
from rljob_runtime.cli.run.manifest import localised
from tests.support.paths import ROOT
from tests.support.rows import slow

EXAMPLES = ROOT / "examples"
ROUNDS = {"OnPolicy": 3, "Asynchronous": 6}
RATE = 1e-3
"""Three times that of the example, which has 30 rounds."""


@pytest.mark.engine
@pytest.mark.parametrize("mode", ["OnPolicy", *slow("Asynchronous")])
def test_a_model_learns_to_use_a_tool(tmp_path, mode):
    from rljob_runtime.local import run

    documents = yaml.safe_load_all((EXAMPLES / "calculator-agent.yaml").read_text(encoding="utf-8"))
    (document,) = (one for one in documents if one["kind"] == "RLJob")
    shorter = {"mode": mode, "rounds": ROUNDS[mode], "rollout.machines": 1, "algorithm.learningRate": RATE}
    shorter |= {"streamTraining.enabled": "true"} if mode == "OnPolicy" else {}
    job = load(localised(document, EXAMPLES, {}, [f"spec.{name}={value}" for name, value in shorter.items()]))
    result = run(job, tmp_path, manifest=EXAMPLES)
    assert result.finished is not None
    assert result.finished.outcome is FinishedOutcome.COMPLETE, result.finished.message
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    rewards = [line["reward"] for line in lines]
    assert len(rewards) == ROUNDS[mode]
    if mode == "OnPolicy":
        assert sum(line["earlyGroups"] for line in lines) > 0, "groups are trained on while others call the tool"
        assert {line["loan"]["reason"] for line in lines} == {"OneMachine"}
    assert rewards[0] < 0.5 < max(rewards[-2:]), "it can only solve the task with the tool, and learns to call it"
    checked = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert (checked.exit_code, "lost 0, duplicated 0, broken 0" in checked.stdout) == (0, True), checked.output
    with sqlite3.connect(tmp_path / "state.db") as db:
        turns = [count for (count,) in db.execute("SELECT count(*) FROM turns WHERE kind = 'sampled' GROUP BY episode")]
        failed = db.execute("SELECT detail FROM episodes WHERE state = 'aborted' AND cause <> 'not needed'").fetchall()
    assert max(turns) > 1, "a call, and the answer after its result"
    assert not failed
