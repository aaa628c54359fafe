"""Processes: an attempt that is cancelled leaves none, also while its program starts."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.processes import bare_environment, process_group

SLEEPS = "sleep 1000 & echo $! > child; wait"


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(holds: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        await asyncio.sleep(0.01)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    """Programs that run already while their start has not returned."""
    start, found = asyncio.create_subprocess_exec, list[asyncio.subprocess.Process]()

    async def slow(*arguments: Any, **settings: Any) -> asyncio.subprocess.Process:
        process = await start(*arguments, **settings)
        found.append(process)
        await asyncio.sleep(0.3)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
    return found


async def test_a_program_whose_start_is_cancelled_ends_with_all_of_its_session(
    tmp_path: Path, started: list[asyncio.subprocess.Process]
) -> None:
    guard = Guard()

    async def attempt() -> None:
        pipe = asyncio.subprocess.PIPE
        async with process_group(["sh", "-c", SLEEPS], bare_environment(tmp_path, {}), tmp_path, guard, stdout=pipe):
            raise AssertionError("its start was cancelled")

    running = asyncio.create_task(attempt())
    child = tmp_path / "child"
    await until(lambda: started and child.exists() and child.read_text().strip())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not runs(started[0].pid)
    await until(lambda: not runs(int(child.read_text())))
    guard.close()
