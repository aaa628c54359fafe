"""A process that keeps dying is started a few times; one that had started well begins a new count."""

from __future__ import annotations

import pytest

from rljob_runtime.scheduling.backoff import Backoff
from rljob_runtime.scheduling.fault_detection.process_restarts import STEADY_SECONDS, ProcessRestarts


@pytest.mark.parametrize(
    ("lived", "delays"),
    [
        ([1.0] * 4, [0.5, 1.0, 2.0, None]),
        ([1.0, 1.0, STEADY_SECONDS, 1.0, 1.0, 1.0], [0.5, 1.0, 0.5, 1.0, 2.0, None]),
        ([STEADY_SECONDS] * 6, [0.5] * 6),
    ],
)
def test_restarts_are_bounded_unless_the_process_had_started_well(
    lived: list[float], delays: list[float | None]
) -> None:
    restarts = ProcessRestarts(Backoff(0.5, 2.0, 15.0, limit=4))
    assert [restarts.delay(seconds) for seconds in lived] == delays
    assert restarts.total == len([delay for delay in delays if delay is not None])
