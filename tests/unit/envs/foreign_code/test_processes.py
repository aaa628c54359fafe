"""Processes: an attempt that is cancelled leaves none, also while its program starts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_env.foreign_code import guard as guards
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.processes import bare_environment, process_group
from tests.support.envs.processes import gone
from tests.support.paths import ROOT
from tests.support.slow_start import assert_cancelled_start_leaves_nothing, slow_starts, with_a_child


async def test_a_program_whose_start_is_cancelled_ends_with_all_of_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, child, guard = slow_starts(monkeypatch), tmp_path / "child", Guard()

    async def attempt() -> None:
        command, pipe = ["sh", "-c", with_a_child(child)], asyncio.subprocess.PIPE
        async with process_group(command, bare_environment(tmp_path, {}), tmp_path, guard, stdout=pipe):
            raise AssertionError("its start was cancelled")

    await assert_cancelled_start_leaves_nothing(asyncio.create_task(attempt()), started, child)
    guard.close()


STARTS_AND_DIES = """
import asyncio, os, signal, sys
from pathlib import Path
from rljob_env.foreign_code import processes
from rljob_env.foreign_code.guard import Guard

async def main(folder):
    # The program has begun, and this process dies before its event loop learns of it.
    start = asyncio.create_subprocess_exec
    async def dies(*command, **options):
        process = await start(*command, **options)
        print(process.pid, flush=True)
        os.killpg(0, signal.SIGKILL)
    asyncio.create_subprocess_exec = dies
    environment, nowhere = processes.bare_environment(folder, {}), asyncio.subprocess.DEVNULL
    async with processes.process_group(["sleep", "600"], environment, folder, Guard(), stdout=nowhere, stderr=nowhere):
        pass

asyncio.run(main(Path(sys.argv[1])))
"""


def test_programs_get_the_jobs_proxy_and_not_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy.corp")
    monkeypatch.setenv("no_proxy", ".svc")
    assert not {"HTTPS_PROXY", "no_proxy"} & bare_environment(tmp_path, {}).keys()
    monkeypatch.setenv("RLJOB_PROXY_KEY", "rlp1.a.b")
    found = bare_environment(tmp_path, {})
    assert (found["HTTPS_PROXY"], found["no_proxy"]) == ("http://user:secret@proxy.corp", ".svc")
    assert "RLJOB_PROXY_KEY" not in found


async def test_a_program_ends_with_a_runner_that_dies_as_it_begins(tmp_path: Path) -> None:
    path = os.pathsep.join((str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")))
    dies = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        STARTS_AND_DIES,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    said, _ = await dies.communicate()
    assert dies.returncode == -signal.SIGKILL
    await gone([int(said)])


async def test_a_program_runs_although_the_guard_has_died(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    guard, pipe = Guard(), asyncio.subprocess.PIPE
    guard._process.kill()
    guard._process.wait()
    async with process_group(["echo", "here"], bare_environment(tmp_path, {}), tmp_path, guard, stdout=pipe) as process:
        assert process.stdout is not None
        assert await process.stdout.read() == b"here\n"
        assert await process.wait() == 0
    assert "the guard has died" in caplog.text


class Groups:
    """Process groups as the guard sees them: when their leader began, None if it has ended; and what was killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leaders: dict[int, str | None] = {}
        self.killed: list[int] = []
        monkeypatch.setattr(guards.signal, "signal", lambda *_: None)
        monkeypatch.setattr(guards, "_started", self.leaders.get)
        monkeypatch.setattr(guards.os, "killpg", self.kill)

    def kill(self, group: int, number: int) -> None:
        if group not in self.leaders:
            raise ProcessLookupError
        if number:
            self.killed.append(group)

    def play(self, monkeypatch: pytest.MonkeyPatch, *steps: tuple[str, dict[int, str | None]]) -> list[int]:
        """Let the guard read a line each after these groups are there; return what it kills at the end."""

        def lines() -> Iterator[str]:
            for line, leaders in steps:
                self.leaders.clear()
                self.leaders.update(leaders)
                if line:
                    yield line

        monkeypatch.setattr(guards.sys, "stdin", lines())
        guards.main()
        return self.killed


@pytest.mark.parametrize(
    ("steps", "killed"),
    [
        ([("+4\n", {4: "7"}), ("", {4: "7"})], [4]),
        # The program has ended, what it started has not.
        ([("+4\n", {4: "7"}), ("", {4: None})], [4]),
        ([("+4\n", {4: "7"}), ("-4\n", {}), ("", {4: "9"})], []),
        # A program that could not begin has named its group; another's has its number now.
        ([("+4\n", {4: "7"}), ("", {4: "9"})], []),
        ([("+4\n", {4: "7"}), ("+5\n", {5: "8"}), ("", {4: None, 5: "8"})], [5]),
        # The next program of the runner has its number.
        ([("+4\n", {4: "7"}), ("+4\n", {4: "9"}), ("", {4: "9"})], [4]),
    ],
)
def test_the_guard_kills_the_groups_of_its_runner_and_no_other(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, dict[int, str | None]]], killed: list[int]
) -> None:
    assert Groups(monkeypatch).play(monkeypatch, *steps) == killed
