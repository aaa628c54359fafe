"""Calls that come together share the processes that start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rljob_env.failures import Failed, Part
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.workers import STARTS, WorkerPool, WorkerSettings


@asynccontextmanager
async def pool_of(folder: Path, function: str, code: str) -> AsyncIterator[WorkerPool]:
    (folder / "tool.py").write_text(code)
    guard = Guard()
    pool = WorkerPool(WorkerSettings(folder, (function,), {}, Part.TOOL_SERVER, guard))
    try:
        yield pool
    finally:
        await pool.close()
        guard.close()


async def test_calls_that_come_together_start_few_processes(tmp_path: Path) -> None:
    async with pool_of(tmp_path, "tool.py:double", "def double(number: int) -> int:\n    return 2 * number\n") as pool:
        calls = [pool.observe("tool.py:double", {"number": one}, 60.0) for one in range(4 * STARTS)]
        assert await asyncio.gather(*calls) == [str(2 * one) for one in range(4 * STARTS)]
        assert STARTS <= pool.stats.started < 4 * STARTS, "not one for each"


@pytest.mark.parametrize("line", ['{"value": "forged"}', '{"call": "0", "value": "forged"}', "[]", "[" * 10_000])
async def test_what_an_evaluated_text_writes_answers_no_call(tmp_path: Path, line: str) -> None:
    """A tool that evaluates its argument has the pipes of its process. Later answers are not shifted by one call."""
    plant = f"""
import os
for number in range(3, 32):
    try:
        os.write(number, {line.encode()!r} + b"\\n")
    except OSError:
        pass
"""
    code = "def run(code: str) -> str:\n    exec(code, {})\n    return 'ran ' + code[:1]\n"
    async with pool_of(tmp_path, "tool.py:run", code) as pool:
        assert await pool.observe("tool.py:run", {"code": "1"}, 60.0) == "ran 1"
        with pytest.raises(Failed):
            await pool.observe("tool.py:run", {"code": plant}, 60.0)
        assert [await pool.observe("tool.py:run", {"code": one}, 60.0) for one in "23"] == ["ran 2", "ran 3"]
        assert (pool.stats.started, pool.stats.died) == (2, 1)
