"""Processes: an attempt that is cancelled leaves none, also while its program starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.processes import bare_environment, process_group
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
