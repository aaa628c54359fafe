"""Slow start: programs that run, and have started another one, while their start has not returned yet."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.envs.processes import gone, lives

START_SECONDS = 0.3
PATIENCE_SECONDS = 60.0


def slow_starts(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    """Let each start return late. Returns the list of the programs that run."""
    start, found = asyncio.create_subprocess_exec, list[asyncio.subprocess.Process]()

    async def slow(*arguments: Any, **settings: Any) -> asyncio.subprocess.Process:
        process = await start(*arguments, **settings)
        found.append(process)
        await asyncio.sleep(START_SECONDS)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
    return found


def with_a_child(file: Path) -> str:
    """Return a program of the shell that starts another one and writes its number."""
    return f"sleep 1000 & echo $! > {file}; wait"


async def assert_cancelled_start_leaves_nothing(
    running: asyncio.Task[Any], started: list[asyncio.subprocess.Process], child: Path
) -> None:
    """Cancel a task whose program starts; neither the program nor its child may be left."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (started and child.exists() and child.read_text().strip()):  # noqa: ASYNC110, a file has no event
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not lives(started[0].pid)
    await gone([int(child.read_text())])
