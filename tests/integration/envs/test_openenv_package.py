"""Servers of the OpenEnv package itself, as it is on PyPI: its own echo environment, a game, and one of tools.

The echo environment is what `openenv init` makes, as it is; the others are written here over the package's classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.envs.packages import echo_server, openenv_python, serving
from tests.support.envs.site import RECORD, call, open_site, scripted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # in make test: tests/unit/envs/test_openenv.py

SERVER = '''
import random
import sys

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import (
    Action, CallToolAction, CallToolObservation, Environment, MCPEnvironment, Observation, State, create_fastapi_app,
)


class Guess(Action):
    guess: int


class Hint(Observation):
    hint: str


class Game(Environment):
    """A number below 10 is guessed; the seed chooses it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.number = random.Random(seed).randrange(10)
        return Hint(hint="Guess a number below 10.")

    def step(self, action, timeout_s=None, **kwargs):
        if action.guess < 0:
            raise OSError("the dice are gone")
        if action.guess == self.number:
            return Hint(hint="right", reward=1.0, done=True)
        return Hint(hint="too low" if action.guess < self.number else "too high", reward=0.125)


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def __init__(self):
        server = FastMCP("calculator")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @server.tool
        def divide(a: int, b: int) -> float:
            return a / b

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation()

    def _step_impl(self, action, timeout_s=None, **kwargs):
        raise ValueError("calls of tools only")


kind, port = sys.argv[1:]
made = {"game": (Game, Guess, Hint), "tools": (Tools, CallToolAction, CallToolObservation)}[kind]
uvicorn.run(create_fastapi_app(*made, max_concurrent_envs=4), host="127.0.0.1", port=int(port), log_level="warning")
'''


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return openenv_python(tmp_path_factory.mktemp("openenv") / "venv")


@pytest.fixture(scope="module")
def game(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(python, own_server(tmp_path_factory.mktemp("game")), "server.py", "game") as url:
        yield url


@pytest.fixture(scope="module")
def tool_server(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(python, own_server(tmp_path_factory.mktemp("tools")), "server.py", "tools") as url:
        yield url


@pytest.fixture(scope="module")
def echo(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with echo_server(python, tmp_path_factory.mktemp("echo")) as url:
        yield url


def own_server(folder: Path) -> Path:
    (folder / "server.py").write_text(SERVER)
    return folder


async def test_the_packages_own_echo_environment_is_played_as_it_is(echo: str, tmp_path: Path) -> None:
    said = ("Hello", "A text of more than ten letters", "Bye")
    async with open_site(scripted(*said)) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, echo, max_turns=3), seconds=120.0)
        assert (report.failed, report.metrics["turns"], report.metrics["env_steps"]) == (None, 3, 3), report.detail
        # A letter earns 0.1, and a message 1 at most.
        assert report.reward == pytest.approx(0.5 + 1.0 + 0.3)
        first, second, third = site.prompts()
        assert "environment ready!" in first
        for prompt, text in ((second, said[0]), (third, said[1])):
            assert text in prompt.rsplit("<|im_start|>user\n", 1)[1]
        site.assert_trained_tokens_are_the_engines(turns=3)


async def test_a_game_is_played_to_its_end(game: str, tmp_path: Path) -> None:
    numbers = scripted("What?", *(f'{{"guess": {number}}}' for number in range(10)))
    async with open_site(numbers) as site, site.stack:
        harness = site.open_env(tmp_path, game)
        await site.run(harness)
        # The seed 1 chooses the number 2, and 7 the number 5.
        for index, (seed, number) in enumerate(((1, 2), (7, 5))):
            record = {**RECORD, "reset": {"seed": seed}}
            report = await site.environments.reported(await site.put(index, record=record, seconds=120.0))
            assert (report.failed, report.reward) == (None, 1.0 + 0.125 * number), report.detail
            assert (report.metrics["turns"], report.metrics["refused_actions"]) == (number + 2, 1)
        first, second, third = site.prompts()[:3]
        assert '"guess": {"title": "Guess", "type": "integer"}' in first
        assert "error: the answer is no action" in second
        assert third.endswith("<|im_start|>user\ntoo low<|im_end|>\n<|im_start|>assistant\n")
        assert site.loss_tokens() == site.coordinator.engine.emitted


async def test_what_the_environment_raises_is_a_failure_of_ours(game: str, tmp_path: Path) -> None:
    said = scripted('{"guess": "three"}', '{"guess": -1}')
    async with open_site(said) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, game), seconds=120.0)
        assert (report.failed, report.reward) == ("environment", None)
        assert "EXECUTION_ERROR: the dice are gone" in report.detail
        assert "error: guess: Input should be a valid integer" in site.prompts()[1]


async def test_tools_of_an_environment_are_called(tool_server: str, tmp_path: Path) -> None:
    said = scripted(call("divide", '{"a": 1, "b": 0}'), call("add", '{"a": 2, "b": 3}'), "5")
    async with open_site(said) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, tool_server), seconds=120.0)
        assert (report.failed, report.reward, report.metrics["turns"]) == (None, None, 3), report.detail
        first, second, third = site.prompts()
        assert "Add two numbers." in first
        assert "<|im_start|>tool\nerror: " in second
        assert "<|im_start|>tool\n5<|im_end|>" in third
