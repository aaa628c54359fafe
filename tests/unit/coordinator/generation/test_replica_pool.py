"""Which calls a pool makes to its replicas."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.protocols import Delta, EngineStats, GenerateRequest, ReplicaReport
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, Sampling, TrajectoryKey
from rljob_runtime.simulator.core import virtual_time
from tests.support.simulated_job import job

NAMES = ("rollout-0.0", "rollout-1.0")


class Recorded:
    """A replica that never answers a poll, and records the requests of each call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[GenerateRequest] = []

    async def abort(self, term: int, attempts: object) -> None:
        """Stop nothing."""

    def submit(self, term: int, requests: list[GenerateRequest]) -> Coroutine[Any, Any, None]:
        self.asked += requests
        return self.abort(term, requests)

    async def poll(self, term: int, after: int, wait_seconds: float) -> None:
        await asyncio.Event().wait()


class Members:
    """A fleet that no machine leaves."""

    timeline = Timeline()

    async def run_while_member(self, replica: object, call: Coroutine[Any, Any, None]) -> None:
        await call


def request(number: int) -> GenerateRequest:
    return GenerateRequest(TrajectoryKey(PromptKey(0, number), 0), 1, (1,), Sampling(max_tokens=8), weight_version=1)


def submitted(cancelled: bool) -> list[list[GenerateRequest]]:
    """Return what each replica was asked by a stage that ends before its calls have begun, if it is `cancelled`."""

    async def stage() -> list[list[GenerateRequest]]:
        replicas = {name: Recorded(name) for name in NAMES}
        settings = Settings.of(job())
        pool = ReplicaPool(Members(), 1, settings, EngineObserver(), lambda event: None, lambda: replicas)
        await pool.track({})
        work = asyncio.ensure_future(pool.submit({name: [request(number)] for number, name in enumerate(NAMES)}))
        await asyncio.sleep(0)
        if cancelled:
            work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await pool.close()
        return [replica.asked for replica in replicas.values()]

    return asyncio.run(stage())


def test_each_replica_is_asked_its_own_requests() -> None:
    assert submitted(cancelled=False) == [[request(0)], [request(1)]]


def test_a_stage_that_is_cancelled_begins_no_call() -> None:
    assert submitted(cancelled=True) == [[], []]


class Busy(Recorded):
    """A replica that answers polls, and computes nothing."""

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        await asyncio.sleep(0.01)
        return ReplicaReport("boot", 0, (), 1, EngineStats(1, 0, 0.0, 0, 0, 0, 0, 0))

    def submit(self, term: int, requests: list[GenerateRequest]) -> Coroutine[Any, Any, None]:
        return asyncio.sleep(0.3)


@pytest.mark.parametrize(("file", "lost"), [("kv", []), (None, [NAMES[0]])])
def test_a_replica_that_takes_kv_is_not_lost_for_computing_nothing(file: str | None, lost: list[str]) -> None:
    async def stage() -> list[str]:
        replica, members = Busy(NAMES[0]), Members()
        found: list[str] = []
        members.mark_replica_lost = lambda its, reason, error: found.append(its.name)
        settings = replace(Settings.of(job()), stall=0.1)
        pool = ReplicaPool(members, 1, settings, EngineObserver(), lambda event: None, lambda: {NAMES[0]: replica})
        await pool.track({})
        await pool.submit({NAMES[0]: [replace(request(0), kv_file=file)]})
        await pool.close()
        return found

    assert asyncio.run(stage()) == lost


class Waiting(Recorded):
    """A replica whose polls say at given seconds how many responses wait, and which have ended."""

    reports = ((1, 0, ()), (2, 1, ()), (4, 2, ()), (7, 1, ()), (9, 1, (0,)), (12, 0, (1,)))
    """Second, responses that wait, and those that ended."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.left = list(self.reports)

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        if not self.left:
            await asyncio.Event().wait()
        second, outside, ended = self.left.pop(0)
        await asyncio.sleep(second - asyncio.get_running_loop().time())
        deltas = [Delta(request(one).key, 1, 0, (1,), (0.0,), 1, FinishReason.STOP) for one in ended]
        stats = EngineStats(1, 0, 0.0, 0, second, 0, 0, 0)
        return ReplicaReport("boot", second, tuple(deltas), 1, stats, outside=outside)


def test_a_replica_whose_responses_all_wait_for_programs_does_not_generate() -> None:
    class Fleet(Members):
        def record_generating(self, replica: object) -> None:
            """Do nothing."""

    async def stage() -> list[tuple[str, float, float | None]]:
        fleet = Fleet()
        fleet.timeline = Timeline()
        fleet.layout_of = lambda name: 1
        replica = Waiting(NAMES[0])
        pool = ReplicaPool(
            fleet, 1, Settings.of(job()), EngineObserver(), lambda event: None, lambda: {NAMES[0]: replica}
        )
        await pool.track({})
        await pool.submit({NAMES[0]: [request(0), request(1)]})
        await asyncio.sleep(20)
        await pool.close()
        return [(one.name, one.since, one.until) for one in fleet.timeline.recorded() or ()]

    # From 4 to 7 both wait. At 9 one ends, and the other one waits.
    assert virtual_time.run(stage()) == [
        ("generate", 0, 4),
        ("wait for environments", 4, 7),
        ("generate", 7, 9),
        ("wait for environments", 9, 12),
    ]
