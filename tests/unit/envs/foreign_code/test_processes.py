"""Processes: an attempt that is cancelled leaves none, also while its program starts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
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


@pytest.mark.parametrize(("at_the_end", "killed"), [("7", True), (None, True), ("9", False)])
def test_a_group_whose_number_is_anothers_by_now_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, at_the_end: str | None, killed: bool
) -> None:
    """A program that cannot begin has named its group, and nothing tells the guard of its end."""
    began, found = iter(["7", at_the_end]), []
    monkeypatch.setattr(guards.signal, "signal", lambda *_: None)
    monkeypatch.setattr(guards.sys, "stdin", ["+4321\n"])
    monkeypatch.setattr(guards, "_started", lambda _: next(began))
    monkeypatch.setattr(guards.os, "killpg", lambda *group: found.append(group))
    guards.main()
    assert found == ([(4321, signal.SIGKILL)] if killed else [])
