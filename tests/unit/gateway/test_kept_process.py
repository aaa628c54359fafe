"""A kept process that dies is started again, with a bound; nothing of it outlives its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rljob_runtime.gateway.kept_process import Command, KeptProcess, ProcessFailed, last_words
from rljob_runtime.scheduling.backoff import Backoff
from rljob_runtime.scheduling.fault_detection.process_restarts import ProcessRestarts

ENDS = "import sys; print('the reason', flush=True); sys.exit({status})"
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def command(tmp_path: Path, program: str, end_seconds: float = 15.0) -> Command:
    return Command("the helper", (sys.executable, "-c", program), tmp_path / "log", end_seconds=end_seconds)


def no_sleep(slept: list[float]) -> Callable[[float], Awaitable[None]]:
    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    return sleep


async def test_a_process_that_keeps_dying_fails_with_its_last_words(tmp_path: Path) -> None:
    slept: list[float] = []
    told: list[str] = []
    restarts = ProcessRestarts(Backoff(0.5, 2.0, 15.0, limit=3))
    process = KeptProcess(command(tmp_path, ENDS.format(status=3)), told.append, restarts, no_sleep(slept))
    with pytest.raises(ProcessFailed, match=r"the helper ended with status 3; .*log ends with: the reason"):
        await process.run()
    assert slept == [0.5, 1.0]
    assert len(told) == restarts.total == 2
    assert (tmp_path / "log").read_text() == "the reason\n" * 3


async def test_a_process_that_is_told_what_it_cannot_do_is_not_started_again(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(ProcessFailed, match=r"status 2; .*the reason"):
        await KeptProcess(command(tmp_path, ENDS.format(status=2)), told.append).run()
    assert told == []


async def test_a_program_that_does_not_exist_fails_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match="the helper cannot be started"):
        await KeptProcess(Command("the helper", (str(tmp_path / "absent"),), tmp_path / "log"), print).run()


async def test_the_end_kills_a_process_that_does_not_end_and_what_it_started(tmp_path: Path) -> None:
    process = KeptProcess(command(tmp_path, STUBBORN, end_seconds=0.2), print)
    running = asyncio.create_task(process.run())
    pids: list[int] = []
    async with asyncio.timeout(60):
        while len(pids) < 2:
            await asyncio.sleep(0.02)
            with contextlib.suppress(FileNotFoundError):
                pids = [int(word) for word in (tmp_path / "log").read_text().split()]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(30):
        while any(map(_lives, pids)):  # noqa: ASYNC110, their parent reaps them
            await asyncio.sleep(0.02)


def _lives(pid: int) -> bool:
    """Return whether a process runs: one that nothing reaped yet does not."""
    with contextlib.suppress(OSError):
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    return False


def test_last_words_are_those_of_the_last_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of another start\n")
    assert last_words(log, os.path.getsize(log)) == f"its log is {log}"
    log.write_text("of another start\nnow\n\n")
    assert last_words(log, 17) == f"{log} ends with: now"
