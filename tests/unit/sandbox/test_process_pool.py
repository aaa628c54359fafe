"""Process pool: a call that is cancelled leaves no process, also while it starts."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.sandbox.process_pool import ChildProcess


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


async def test_a_process_whose_start_is_cancelled_ends_with_all_that_it_started(
    tmp_path: Path, started: list[asyncio.subprocess.Process]
) -> None:
    child = tmp_path / "child"
    command = ("sh", "-c", f"sleep 1000 & echo $! > {child}; wait")
    running = asyncio.create_task(ChildProcess.spawn(*command, environment=dict(os.environ)))
    await until(lambda: started and child.exists() and child.read_text().strip())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not runs(started[0].pid)
    await until(lambda: not runs(int(child.read_text())))
