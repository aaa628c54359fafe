"""A store whose volume is slow."""

import asyncio

import pytest

from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.store.latency_monitor import LOOK_SECONDS, StoreLatencyMonitor
from rljob_runtime.scheduling.fault_detection.write_latency import LASTING_SECONDS, LATE_SECONDS, LatencyWindow
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.peers.observed_store import InlineStore
from tests.support.simulated_job import Stage


@pytest.mark.parametrize(
    ("calls", "now", "slow"),
    [
        ([], 1000.0, False),
        ([(0.0, LATE_SECONDS)], LATE_SECONDS, False),
        ([(0.0, 10.5)], 10.5, True),
        ([(0.0, 10.5), (10.5, 11.0)], 70.0, True),
        ([(0.0, 10.5), (10.5, 11.0)], 10.5 + LASTING_SECONDS, False),
        ([(0.0, 10.5), (50.0, 61.0)], 100.0, True),
    ],
)
def test_when_a_volume_counts_as_slow(calls, now, slow):
    pace = LatencyWindow()
    for since, at in calls:
        pace = pace.observe(since, at)
    assert pace.slow(now) is slow


class Volume:
    """`StoreAccess` that waits before each call."""

    seconds = 0.0

    async def do(self, work):
        await asyncio.sleep(self.seconds)
        return work(None)


class Told:
    """A reporter's problems, with the time from which each word held."""

    def __init__(self):
        self.words = []

    def problem(self, reason, problem):
        known = self.words[-1][1] if self.words else False
        if (problem is not None) != known:
            self.words.append((asyncio.get_running_loop().time(), problem is not None))


def test_it_is_told_while_a_call_still_waits_and_taken_back_after_a_while():
    async def work():
        volume, told = Volume(), Told()
        store = StoreLatencyMonitor(volume)
        watch = asyncio.create_task(store.watch(told))
        assert await store.do(lambda _: 7) == 7
        volume.seconds = 300.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100.0):
                await store.do(lambda _: None)
        volume.seconds = 0.0
        while asyncio.get_running_loop().time() < 400.0:
            await store.do(lambda _: None)
            await asyncio.sleep(1.0)
        watch.cancel()
        return told.words

    (first, slow), (last, still) = virtual_time.run(work())
    assert (slow, still) == (True, False)
    assert LATE_SECONDS < first <= LATE_SECONDS + LOOK_SECONDS
    assert 100.0 + LASTING_SECONDS <= last <= 100.0 + LASTING_SECONDS + LOOK_SECONDS


def test_a_job_on_a_slow_volume_goes_on_and_says_so(tmp_path, monkeypatch):
    stage = Stage(tmp_path / "state.db")
    do = InlineStore.do
    calls = iter(range(1_000_000))

    async def slow(self, work):
        if next(calls) == 12:
            await asyncio.sleep(LATE_SECONDS + 2 * LOOK_SECONDS)
        return await do(self, work)

    monkeypatch.setattr(InlineStore, "do", slow)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    problems = [problem for report in stage.control.reports for problem in report.warnings]
    assert "StoreSlow" in {problem.reason for problem in problems}
    assert "10 s" in problems[0].message
