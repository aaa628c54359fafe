"""Process pool: a call that is cancelled leaves no process, also while it starts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from rljob_runtime.sandbox.process_pool import ChildProcess
from tests.support.slow_start import assert_cancelled_start_leaves_nothing, slow_starts, with_a_child


async def test_a_process_whose_start_is_cancelled_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, child = slow_starts(monkeypatch), tmp_path / "child"
    spawning = ChildProcess.spawn("sh", "-c", with_a_child(child), environment=dict(os.environ))
    await assert_cancelled_start_leaves_nothing(asyncio.create_task(spawning), started, child)
