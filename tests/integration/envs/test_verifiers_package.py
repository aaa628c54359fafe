"""The verifiers package itself, as it is on PyPI: a runner in its Python plays tasks with tokens of this gateway.

Its own text games are played as they are, and tasks of reasoning-gym, for which the package has no taskset.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.protocols.environments import TRACE_TOKENS, TRACE_TURNS, EpisodeReport, FailedPart
from tests.support.envs.packages import GYM, HANGMAN, verifiers_python
from tests.support.envs.runner_process import runner_process
from tests.support.envs.site import RECORD, Site, open_site, scripted
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # in make test: tests/unit/envs/test_verifiers.py

SECONDS = 400.0
INHERITED = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")
TASKSET = '''
import httpx
import verifiers.v1 as vf

__all__ = ["Loop", "Sums"]


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        if self.data.answer == 0:
            raise OSError("the answers are gone")
        return float(trace.last_reply == str(self.data.answer))

    @vf.metric
    async def replies(self, trace) -> float:
        return trace.num_turns


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for a, b in ((2, 3), (4, 5), (0, 0)):
            yield SumTask(SumData(prompt=f"{a}+{b}", answer=a + b), self.config.task)


class Loop(vf.Harness[vf.HarnessConfig]):
    """Asks until the model stops saying `again`, in this process: nothing is downloaded."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "user", "content": data.prompt}]
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(trust_env=False, headers=headers, timeout=120) as http:
            while True:
                body = {"model": ctx.model, "messages": messages}
                response = await http.post(f"{endpoint}/chat/completions", json=body)
                if response.status_code != 200:
                    return vf.ProgramResult(1, "", response.text)
                message = response.json()["choices"][0]["message"]
                if message["content"] != "again":
                    return vf.ProgramResult(0, "", "")
                messages += [message, {"role": "user", "content": "wrong"}]
'''


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return verifiers_python(tmp_path_factory.mktemp("verifiers") / "venv")


@contextmanager
def runner(python: Path, folder: Path, url: str, taskset: str = TASKSET, **options: Any) -> Iterator[None]:
    """Run a runner of the taskset in the package's Python."""
    (folder / "sums.py").write_text(taskset)
    environment = {"kind": "Verifiers", "verifiers": {"id": "sums"}, "episodesPerRunner": 2, **options}
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    variables = {**kept, "PYTHONPATH": str(ROOT / "envs"), "UV_CACHE_DIR": str(folder / "uv")}
    with runner_process([str(python)], folder, url, environment, variables):
        yield


async def played(site: Site, index: int, task: int) -> EpisodeReport:
    episode = await site.put(index, seconds=SECONDS, record={**RECORD, "task": task})
    async with asyncio.timeout(SECONDS):
        return await site.environments.reported(episode)


async def test_tasks_are_played_with_tokens_of_the_engine(python: Path, tmp_path: Path) -> None:
    async with open_site(scripted("again", "5")) as site, site.stack:
        with runner(python, tmp_path, site.url):
            right, wrong = await played(site, 0, 0), await played(site, 1, 1)
        assert (right.reward, right.failed, wrong.reward, wrong.failed) == (1.0, None, 0.0, None), (right, wrong)
        assert right.metrics["replies"] == right.metrics[TRACE_TURNS] == 2
        emitted = site.coordinator.engine.emitted
        assert right.metrics[TRACE_TOKENS] == sum(len(tokens) for _, tokens, _ in emitted[:2])
        assert site.loss_tokens() == emitted
        assert [prompt.count("wrong") for prompt in site.prompts()] == [0, 1, 0, 1]


async def test_the_environments_turn_limit_ends_an_episode_that_is_scored(python: Path, tmp_path: Path) -> None:
    async with open_site(scripted("again")) as site, site.stack:
        with runner(python, tmp_path, site.url, maxTurns=3):
            report = await played(site, 0, 0)
        assert (report.reward, report.failed, report.metrics[TRACE_TURNS]) == (0.0, None, 3), report


@pytest.mark.parametrize(
    ("taskset", "task", "detail"),
    [
        (TASKSET, 2, "OSError: the answers are gone"),
        (TASKSET, 3, "the taskset has 3 tasks"),
        (TASKSET.replace("__all__", "all"), 0, "defines no `__all__`"),
    ],
)
async def test_a_failure_of_the_environment_is_no_reward(
    python: Path, tmp_path: Path, taskset: str, task: int, detail: str
) -> None:
    async with open_site(scripted("5")) as site, site.stack:
        with runner(python, tmp_path, site.url, taskset):
            report = await played(site, 0, task)
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert detail in report.detail


async def test_the_packages_own_chat_program_works_as_it_is(python: Path, tmp_path: Path) -> None:
    """It downloads the program's dependencies."""
    taskset = TASKSET.replace('__all__ = ["Loop", "Sums"]', '__all__ = ["Sums"]')
    async with open_site(scripted("5")) as site, site.stack:
        with runner(python, tmp_path, site.url, taskset):
            report = await played(site, 0, 0)
        assert (report.reward, report.failed, report.metrics[TRACE_TURNS]) == (1.0, None, 1), report
        assert site.loss_tokens() == site.coordinator.engine.emitted


async def test_a_text_game_of_the_package_is_won_with_tokens_of_the_engine(python: Path, tmp_path: Path) -> None:
    async with open_site(scripted("A vowel: [a]", "[x]", "I know it: [cat]")) as site, site.stack:
        with runner(python, tmp_path, site.url, verifiers=HANGMAN):
            report = await played(site, 0, 0)
        assert (report.reward, report.failed, report.metrics[TRACE_TURNS]) == (1.0, None, 3), report
        first, second, third = site.prompts()
        assert "You are a competitive game player." in first
        assert "  _   _   _ " in first
        for after_a_move in (second, third):
            assert "  _   A   _" in after_a_move.rsplit("<|im_start|>user", 1)[1]
        site.assert_trained_tokens_are_the_engines(turns=3)


async def test_a_text_game_that_is_lost_earns_what_the_game_says(python: Path, tmp_path: Path) -> None:
    async with open_site(scripted(*(f"[{letter}]" for letter in "bdefgh"))) as site, site.stack:
        with runner(python, tmp_path, site.url, verifiers=HANGMAN, maxTurns=12):
            report = await played(site, 0, 0)
        assert (report.failed, report.metrics[TRACE_TURNS]) == (None, 6), report
        assert report.reward is not None
        assert report.reward < 1.0
        site.assert_trained_tokens_are_the_engines(turns=6)


async def test_tasks_of_reasoning_gym_are_scored_by_it(python: Path, tmp_path: Path) -> None:
    """The package `reasoning-gym` makes the tasks and scores the answers, and the package's own program asks."""
    from reasoning_gym import create_dataset

    entry = create_dataset("chain_sum", size=4, seed=1)[1]
    async with open_site(lambda prompt, turn: str(entry["answer"])) as site, site.stack:
        with runner(python, tmp_path, site.url, GYM):
            right, other = await played(site, 0, 1), await played(site, 1, 0)
        assert (right.reward, right.failed, other.failed) == (1.0, None, None), (right, other)
        assert other.reward is not None
        assert other.reward < 1.0
        assert str(entry["question"]) in site.prompts()[0]
        site.assert_trained_tokens_are_the_engines(turns=2)
