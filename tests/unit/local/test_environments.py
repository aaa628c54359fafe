"""The processes of local environments: a gateway and runners that play episodes, are started again, and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rljob_env.config import load_config
from rljob_runtime.gateway.kept_process import ProcessFailed
from rljob_runtime.local.environments import PROCESS_RESTARTED, RUNNER_PYTHON, EnvironmentFolders, LocalEnvironments
from rljob_runtime.protocols.environments import Assignment
from tests.support.gateway.light_tokenizer import STRIPS_THINKING
from tests.support.gateway.stand_in_coordinator import StandInCoordinator, attempt_of
from tests.support.gateway.stand_in_environments import StandInEnvironments
from tests.support.gateway.toy_site import toy_coordinator, toy_files
from tests.support.local_agents import job
from tests.support.waiting import until

SECONDS = 240.0
"""The gateway's process imports transformers."""
FAR = 4_000_000_000.0
RUNNER = """
import json, os, sys, time
from pathlib import Path
import httpx
settings = json.loads(Path(sys.argv[1]).read_text())
key = Path(settings["keyFile"]).read_text()
name = f"runner-{os.getpid()}"
with httpx.Client(base_url=settings["url"], headers={"Authorization": f"Bearer {key}"}, timeout=90) as gateway:
    while True:
        try:
            answer = gateway.post("/env/lease", json={"runner": name, "waitSeconds": 2})
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if answer.status_code != 200:
            time.sleep(0.05)
            continue
        task = answer.json()
        if task["record"].get("dies"):
            print("told to die", flush=True)
            os._exit(7)
        url, agent = f"{task['baseUrl']}/chat/completions", {"Authorization": f"Bearer {task['apiKey']}"}
        body = {"model": task["model"], "messages": task["messages"]}
        said = gateway.post(url, headers=agent, json=body).json()["choices"][0]["message"]["content"]
        end = {"runner": name, "episode": task["episode"], "attempt": task["attempt"], "reward": float(len(said))}
        gateway.post("/env/done", json=end)
"""
"""A stand-in for `rljob_env`: it plays one turn."""


@dataclass
class Run:
    """A run folder with a job's environments, and the coordinator's side."""

    local: LocalEnvironments
    folder: Path
    coordinator: StandInCoordinator
    environments: StandInEnvironments

    async def played(self, index: int, **record: Any) -> float | None:
        """Let a runner play an episode; return its reward."""
        episode = attempt_of(index)
        self.coordinator.start(episode)
        await self.environments.put(Assignment(episode, "calc", record, [{"role": "user", "content": "3 + 4 ="}], FAR))
        async with asyncio.timeout(SECONDS):
            return (await self.environments.reported(episode)).reward

    def pid(self, name: str) -> int:
        return next(pid for pid, line in processes().items() if name in line and str(self.folder) in line)

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        async with self.local.serve(self.coordinator, self.environments):
            yield


def processes() -> dict[int, str]:
    """Return the commands of all processes."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found[int(file.parent.name)] = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def run_in(folder: Path, program: str = RUNNER, template: str | None = None, named: bool = True) -> Run:
    """Return a run. `named`: whether it is told the command of its runners."""
    model = folder / "model"
    model.mkdir()
    (folder / "runner.py").write_text(program)
    folders = EnvironmentFolders(folder / "run", toy_files(model, template), folder)
    command = (sys.executable, str(folder / "runner.py")) if named else None
    local = LocalEnvironments(job(), folders, command)
    return Run(local, folder, toy_coordinator(lambda prompt, turn: "seven"), StandInEnvironments())


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rljob-") as made:
        yield Path(made)


async def test_episodes_are_played_through_the_death_of_runners_and_gateway(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runners have a Python of their own."""
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "-m rljob_env" ] || exit 2\nshift 2\nexec {sys.executable} {folder}/runner.py "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv(RUNNER_PYTHON, str(python))
    run = run_in(folder, named=False)
    async with run.served():
        assert await run.played(0) == 5.0
        assert run.local.observe(None, None) is None  # type: ignore[arg-type]
        await run.environments.put(Assignment(attempt_of(1), "calc", {"dies": True}, [], FAR))
        await until(lambda: run.local.restarts == 1, SECONDS)
        warning = run.local.observe(None, None)  # type: ignore[arg-type]
        assert warning is not None
        assert warning.reason == PROCESS_RESTARTED
        assert "of environment calc ended with status 7" in warning.message
        assert "told to die" in warning.message
        url = run.local.url
        os.kill(run.pid("rljob_runtime.entrypoints gateway"), signal.SIGKILL)
        await until(lambda: run.local.restarts == 2, SECONDS)
        assert await run.played(2) == 5.0
        assert run.local.url == url
        settings = load_config(str(folder / "run" / "environments" / "calc.json"), {})
        assert (settings.url, settings.root) == (url, folder)
        assert (settings.environment.command, settings.environment.episodes) == (("python", "agent.py"), 8)
        for file in (folder / "run" / "environments").iterdir():
            assert file.name == "gateway-port" or file.stat().st_mode & 0o077 == 0, file
    assert [line for line in processes().values() if str(folder) in line] == []
    assert sorted(run.coordinator.loss_tokens(attempt_of(0))) == run.coordinator.engine.emitted[:1]


async def test_a_template_that_cannot_be_used_ends_the_run_with_its_reason(folder: Path) -> None:
    run = run_in(folder, template=STRIPS_THINKING)
    with pytest.raises(ProcessFailed, match=r"status 2; .*gateway.log ends with: gateway: TemplateNotAppendOnly"):
        async with run.served():
            pytest.fail("a gateway that cannot start serves nothing")
    assert [line for line in processes().values() if str(folder) in line] == []


async def test_a_runner_that_cannot_work_fails_the_run_and_all_processes_end(folder: Path) -> None:
    run = run_in(folder, "import sys; print('rljob-env: no such tool'); sys.exit(2)")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(run.served())
        async with asyncio.timeout(SECONDS):
            with pytest.raises(ProcessFailed, match="no such tool"):
                await run.local.failed()
    assert run.local.restarts == 0
    assert [line for line in processes().values() if str(folder) in line] == []
