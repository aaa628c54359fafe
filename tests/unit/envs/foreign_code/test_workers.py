"""Calls that come together share the processes that start."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rljob_env.failures import Part
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.workers import STARTS, WorkerPool, WorkerSettings


async def test_calls_that_come_together_start_few_processes(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("def double(number: int) -> int:\n    return 2 * number\n")
    guard = Guard()
    pool = WorkerPool(WorkerSettings(tmp_path, ("tool.py:double",), {}, Part.TOOL_SERVER, guard))
    try:
        calls = [pool.observe("tool.py:double", {"number": one}, 60.0) for one in range(4 * STARTS)]
        assert await asyncio.gather(*calls) == [str(2 * one) for one in range(4 * STARTS)]
        assert STARTS <= pool.stats.started < 3 * STARTS
    finally:
        await pool.close()
        guard.close()
