"""The example with a second try, cut down: SmolLM2, its program, the gateway and the trainer, by `rljob run`."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_runtime.cli import app
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples/second-try-smollm2.yaml"
END = 2
"""`<|im_end|>`: what ends a turn of ChatML, in SmolLM2's vocabulary."""


def cut_down(engine: str, rounds: int, prompts: int, responses: int) -> list[str]:
    """Return the options of `rljob run` that leave so much of the example."""
    settings = {
        "rounds": rounds,
        "algorithm.promptsPerRound": prompts,
        "algorithm.responsesPerPrompt": responses,
        "environments[0].runners": 1,
        "rollout.machines": 1,
        "rollout.engine": engine,
        "rollout.engineOptions.kvCacheBytes": "64Mi",
    }
    return [word for name, value in settings.items() for word in ("--set", f"spec.{name}={value}")]


# Its program is in tests/unit/envs/test_second_try_example.py, a job of programs in test_guide_job.py, and turns of
# SmolLM2 through the gateway in tests/integration/envs/test_engine_clients.py.
@pytest.mark.slow  # in make test: tests/integration/local/test_agents.py
@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("engine", "rounds", "prompts", "responses"), [("Reference", 1, 2, 2), ("VLLM", 2, 2, 4)])
def test_the_example_trains_on_episodes_of_two_turns(
    tmp_path: Path, engine: str, rounds: int, prompts: int, responses: int
) -> None:
    options = cut_down(engine, rounds, prompts, responses)
    done = CliRunner().invoke(app, ["run", "-f", str(EXAMPLE), "--workdir", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert (checked.exit_code, "lost 0, duplicated 0, broken 0" in checked.stdout) == (0, True), checked.output
    assert "tokens of another origin 0" in checked.stdout, checked.output
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, rounds + 1))
    assert all(0.0 <= line["reward"] <= 1.0 for line in lines)
    with sqlite3.connect(tmp_path / "state.db") as db:
        episodes = db.execute("SELECT id, state, cause FROM episodes").fetchall()
        turns = db.execute("SELECT episode, tokens, finish FROM turns WHERE kind = 'sampled'").fetchall()
    assert all(state in ("completed", "truncated") or cause == "not needed" for _, state, cause in episodes), episodes
    counts = Counter(episode for episode, _, _ in turns)
    assert set(counts.values()) <= {1, 2}
    assert 2 in counts.values(), "it does not answer all sums at the first try"
    stopped = [tokens for _, tokens, finish in turns if finish == "stop"]
    assert stopped
    assert all(int.from_bytes(tokens[-4:], "little") == END for tokens in stopped)
