"""Packages of environments as they are on PyPI, each in a Python of its own, with what they need to work offline."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.support.virtual_env import virtual_env

VERIFIERS, OPENENV = "verifiers==0.4.0", "openenv==0.10.0"
START_SECONDS = 240.0
INIT_SECONDS = 300.0
MINI_VARIABLES = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Of mini-swe-agent: it asks its user nothing, and nothing is downloaded."""
HANGMAN = {"id": "textarena", "args": {"taskset": {"game": "Hangman-v0"}}}
"""A text game of the package verifiers."""
SECRET_WORD = "cat"
ECHO_SERVER = ("-m", "uvicorn", "server.app:app", "--host", "127.0.0.1", "--log-level", "warning", "--port")
"""Arguments of the Python that serves OpenEnv's echo environment, in its folder; the port follows."""
GYM = """
import reasoning_gym
import verifiers.v1 as vf

__all__ = ["Gym"]
SUMS = reasoning_gym.create_dataset("chain_sum", size=4, seed=1)


class GymData(vf.TaskData):
    entry: dict


class GymTask(vf.Task[GymData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return SUMS.score_answer(trace.last_reply, self.data.entry)


class Gym(vf.Taskset[GymTask, vf.TasksetConfig]):
    def load(self):
        for entry in SUMS:
            yield GymTask(GymData(prompt=entry["question"], entry=entry), self.config.task)
"""
"""Tasks of the package reasoning-gym, which makes and scores them: verifiers 0.4 has no taskset for it."""


def verifiers_python(folder: Path) -> Path:
    """Return a Python with verifiers, its text games and reasoning-gym.

    The games take their words from a corpus that they download. Here it has one word, and nothing is downloaded.
    """
    found = virtual_env(folder, VERIFIERS.replace("==", "[ta]=="), "uv", "reasoning-gym==0.1.25")
    words = folder / "nltk_data/corpora/words"
    words.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (words / name).write_text(f"{SECRET_WORD}\n")
    return found


def openenv_python(folder: Path) -> Path:
    """Return a Python with OpenEnv."""
    return virtual_env(folder, OPENENV)


@contextlib.contextmanager
def echo_server(python: Path, folder: Path) -> Iterator[str]:
    """Serve OpenEnv's own environment, the one of a new project, as it is; yield its address."""
    made = new_echo_environment(python, folder)
    with serving(python, made, *ECHO_SERVER) as url:
        yield url


def new_echo_environment(python: Path, folder: Path) -> Path:
    """Make a new project of OpenEnv, which has an environment that echoes; return its folder."""
    made = subprocess.run(
        # Not by its program: a virtual environment may be mounted elsewhere than where it was made.
        [str(python), "-c", "from openenv.cli.__main__ import main; main()", "init", "echo_env"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=INIT_SECONDS,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return folder / "echo_env"


@contextlib.contextmanager
def serving(python: Path, folder: Path, *command: str) -> Iterator[str]:
    """Run a server of the package, whose last argument is its port; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([str(python), *command, str(port)], cwd=folder)
    try:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None
            assert time.monotonic() < until
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/health", trust_env=False)
                break
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)
