"""Which calls a pool makes to its replicas."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.protocols import GenerateRequest
from rljob_runtime.protocols.trajectory import PromptKey, Sampling, TrajectoryKey
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
