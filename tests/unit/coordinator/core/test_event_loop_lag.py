"""The watch over the event loop: the longest turn is seen, shown, and forgotten."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry

from rljob_runtime.coordinator.core.event_loop_lag import KEPT_SECONDS, PERIOD_SECONDS, EventLoopLag
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics

NAME = "rljob_coordinator_loop_longest_turn_seconds"


async def test_a_long_turn_is_shown_and_told(caplog: pytest.LogCaptureFixture) -> None:
    watch, registry = EventLoopLag(), CollectorRegistry()
    CoordinatorMetrics(registry).watch_loop(lambda: watch.longest_seconds)
    assert registry.get_sample_value(NAME) == 0
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    time.sleep(0.7)  # noqa: ASYNC251 - a turn that holds everything
    await asyncio.sleep(2 * PERIOD_SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    shown = registry.get_sample_value(NAME)
    assert shown is not None
    assert 0.7 - PERIOD_SECONDS <= shown < 30
    assert "one turn blocked the event loop for" in caplog.text


@pytest.mark.parametrize(
    ("notes", "longest"),
    [
        ([], 0.0),
        ([(0, 0.2), (1, 0.1)], 0.2),
        ([(0, 3.0), (KEPT_SECONDS + 1, 0.1)], 3.0),
        ([(0, 3.0), (KEPT_SECONDS + 1, 0.1), (2 * KEPT_SECONDS + 2, 0.2)], 0.2),
        ([(0, 3.0), (5 * KEPT_SECONDS, 0.1)], 0.1),
    ],
)
def test_a_turn_is_shown_for_a_minute_or_two(notes: list[tuple[float, float]], longest: float) -> None:
    watch = EventLoopLag()
    for now, late in notes:
        watch.record(now, late)
    assert watch.longest_seconds == longest
