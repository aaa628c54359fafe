"""The first two environments of the guide *Bring your own agent*, tools and a program, in a job of `rljob run`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rljob_runtime.cli import app
from tests.support.envs import guide

ROUNDS, PROMPTS, RESPONSES = 1, 4, 2


def manifest(folder: Path) -> Path:
    """Write a job of the guide's environments, with its code beside it, for a toy that calls `calculate`."""
    guide.write_files(folder, guide.TOOLS, guide.PROGRAM)
    environments = [guide.environment(guide.TOOLS), guide.environment(guide.PROGRAM)]
    records = [
        {"prompt": f"{index + 11} * {index + 12}", "answer": str((index + 11) * (index + 12)), "environment": name}
        for index in range(PROMPTS)
        for name in (one["name"] for one in environments)
    ]
    (folder / "questions.jsonl").write_text("\n".join(json.dumps(one) for one in records))
    spec = {
        "rounds": ROUNDS,
        "model": {"source": "package://rljob/toy-calculator", "dtype": "float32"},
        "data": {
            "prompts": {"file": {"path": "./questions.jsonl", "promptField": "prompt", "answerField": "answer"}},
            "chatTemplate": True,
            "maxPromptTokens": 64,
            "maxResponseTokens": 64,
        },
        "environments": environments,
        "algorithm": {"promptsPerRound": PROMPTS, "responsesPerPrompt": RESPONSES},
        "rollout": {"machines": 1, "engine": "Reference"},
        "checkpoint": {"emptyDir": {}},
    }
    document = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "guide"}, "spec": spec}
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    return folder / "job.yaml"


@pytest.mark.engine
def test_a_job_of_the_guides_environments_runs_to_its_end(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = CliRunner().invoke(app, ["run", "-f", str(manifest(tmp_path)), "--workdir", str(run)])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(app, ["check", str(run)])
    assert (checked.exit_code, "lost 0, duplicated 0, broken 0" in checked.stdout) == (0, True), checked.output
    assert "tokens of another origin 0" in checked.stdout, checked.output
    assert len((run / "rounds.jsonl").read_text().splitlines()) == ROUNDS
    with sqlite3.connect(run / "state.db") as db:
        rows = db.execute("SELECT environment, state, reward FROM episodes").fetchall()
    assert {name for name, _, _ in rows} == {"calc", "own"}
    assert {state for _, state, _ in rows} <= {"completed", "truncated"}, "the toy may call its tool in each turn"
    assert all(reward in (0.0, 1.0) for _, _, reward in rows), "each environment gives its own reward"
