"""The example of an agent: what it says of an answer, what an episode earns, and that it asks as agents do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rljob_api import load
from rljob_env.foreign_code.functions import load_function
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
PROGRAM = EXAMPLES / "second_try.py"
JOB = load((EXAMPLES / "second-try-smollm2.yaml").read_text(encoding="utf-8"))
HINT, REWARD, NUMBER = (load_function(EXAMPLES, f"second_try.py:{name}") for name in ("hint", "reward_of", "number_of"))
QUESTION = [{"role": "user", "content": "Calculate 13 + 92."}]


@pytest.mark.parametrize(("text", "number"), [("13 + 92 = 105.", 105), ("-7", -7), ("a hundred", None), ("", None)])
def test_the_last_number_is_the_answer(text: str, number: int | None) -> None:
    assert NUMBER(text) == number


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (95, "95 is too small. Try again."),
        (115, "115 is too large. Try again."),
        (None, "That is no number. Try again."),
    ],
)
def test_the_hint_says_what_is_wrong(said: int | None, told: str) -> None:
    assert HINT(said, 105) == told


@pytest.mark.parametrize(
    ("said", "reward"),
    [([105], 1.0), ([95, 105], 0.55), ([None, 105], 0.55), ([95, 115], 0.1), ([105, None], 0.0), ([95, None], 0.0)],
)
def test_a_right_first_answer_is_worth_more_than_a_corrected_one(said: list[int | None], reward: float) -> None:
    assert REWARD(said, 105) == reward


@contextmanager
def model_that_says(answers: Sequence[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve these answers in turn; the requests are noted. After them, and without the key, it refuses."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            place, known = len(requests), self.headers["Authorization"] == "Bearer key-1"
            requests.append(body | {"path": self.path})
            if place >= len(answers) or not known:
                self.send_error(401)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [{"message": {"content": answers[place]}}]}).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()


def play(folder: Path, answers: Sequence[str]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Run the program with a model that says this; return its result and the model's requests."""
    task, result = folder / "task.json", folder / "result.json"
    task.write_text(json.dumps({"messages": QUESTION, "record": {"answer": "105"}}))
    with model_that_says(answers) as (url, requests):
        variables = {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": "key-1",
            "OPENAI_MODEL": "policy",
            "RLJOB_TASK": str(task),
            "RLJOB_RESULT": str(result),
        }
        subprocess.run([sys.executable, str(PROGRAM)], env=variables, capture_output=True, timeout=120, check=False)
    return (json.loads(result.read_text()) if result.exists() else None), requests


def test_a_right_answer_ends_the_episode(tmp_path: Path) -> None:
    result, requests = play(tmp_path, ["105", "no further answer"])
    assert result == {"reward": 1.0, "metrics": {"right_first": 1.0, "corrected": 0.0}}
    assert [(one["path"], one["model"], one["messages"]) for one in requests] == [
        ("/v1/chat/completions", "policy", QUESTION)
    ]


def test_a_wrong_answer_is_followed_by_a_hint_and_a_second_try(tmp_path: Path) -> None:
    result, requests = play(tmp_path, ["It is 95.", "105", "no further answer"])
    assert result == {"reward": 0.55, "metrics": {"right_first": 0.0, "corrected": 1.0}}
    assert requests[1]["messages"] == [
        *QUESTION,
        {"role": "assistant", "content": "It is 95."},
        {"role": "user", "content": "95 is too small. Try again."},
    ]
    assert len(requests) == 2


def test_without_a_model_there_is_no_reward(tmp_path: Path) -> None:
    """A zero would be the policy's doing."""
    result, _ = play(tmp_path, ["95"])
    assert result is None


def test_the_job_gives_an_episode_the_turns_that_the_program_asks_for() -> None:
    (environment,) = JOB.spec.environments
    assert (environment.max_turns, environment.gives_reward) == (2, True)
    assert environment.command is not None
    assert (EXAMPLES / environment.command[-1]) == PROGRAM
    assert JOB.spec.rewards == ()
