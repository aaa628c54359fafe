"""The work queue: one worker a key, bounded workers, back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rljob_kube.errors import ApiError
from rljob_operator.workqueue import Backoff, WorkQueue
from tests.support.operator.harness import until


async def _served(work: Any, drive: Any, **settings: Any) -> WorkQueue[str]:
    """Run a queue while `drive` acts."""
    queue: WorkQueue[str] = WorkQueue(work, **settings)
    stop = asyncio.Event()
    task = asyncio.create_task(queue.run(stop))
    try:
        await asyncio.wait_for(drive(queue), 30)
    finally:
        stop.set()
        await asyncio.wait_for(task, 30)
    return queue


async def _idle(queue: WorkQueue[str]) -> None:
    await _when(queue.idle)


async def _when(holds: Callable[[], bool]) -> None:
    async def check() -> bool:
        return holds()

    await until(check)


async def test_one_worker_a_key_and_no_mark_is_lost() -> None:
    running: set[str] = set()
    turns: dict[str, int] = {}

    async def work(key: str, since: float) -> None:
        assert key not in running
        running.add(key)
        turns[key] = turns.get(key, 0) + 1
        await asyncio.sleep(0.01)
        running.discard(key)

    async def drive(queue: WorkQueue[str]) -> None:
        for _ in range(20):
            queue.add("a")
            queue.add("b")
        await asyncio.sleep(0.005)
        queue.add("a")  # while it runs: once more after it
        await _idle(queue)

    await _served(work, drive)
    assert turns == {"a": 2, "b": 1}


async def test_workers_are_bounded() -> None:
    most = now = 0

    async def work(key: str, since: float) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    async def drive(queue: WorkQueue[str]) -> None:
        for number in range(20):
            queue.add(str(number))
        await _idle(queue)

    await _served(work, drive, workers=3)
    assert most == 3


async def test_failures_are_tried_again_and_slowed() -> None:
    failures: list[int] = []

    async def work(key: str, since: float) -> None:
        failures.append(1)
        if len(failures) < 4:
            raise ApiError(500, "InternalError", "boom")

    async def drive(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await _when(lambda: len(failures) >= 4)
        await _idle(queue)

    await _served(work, drive, backoff=Backoff(base=0.01, cap=0.02))
    assert len(failures) == 4


async def test_a_worker_that_hangs_is_ended() -> None:
    calls = 0

    async def work(key: str, since: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()

    async def drive(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await _when(lambda: calls >= 2)
        await _idle(queue)

    await _served(work, drive, work_seconds=0.05, backoff=Backoff(base=0.01))
    assert calls == 2


async def test_work_asks_for_another_turn_and_forgetting_ends_it() -> None:
    calls = 0

    async def work(key: str, since: float) -> float:
        nonlocal calls
        calls += 1
        return 0.01

    async def drive(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await _when(lambda: calls >= 3)
        queue.forget("a")

    await _served(work, drive)
    assert calls >= 3


@pytest.mark.parametrize(("failures", "pause"), [(1, 0.2), (2, 0.4), (5, 3.2), (50, 60.0), (10**6, 60.0)])
def test_back_off_of_the_queue(failures: int, pause: float) -> None:
    assert Backoff().pause(failures, 0.5) == pytest.approx(pause)
