"""Replicas that answer and do nothing, machines that fail again and again."""

import asyncio
from dataclasses import replace

from coordinator_kit import Stage, job, until

from rljob_api.constants import KEEPS_FAILING
from rljob_runtime.coordinator.engine_watch import EngineWatch
from rljob_runtime.coordinator.herd import Herd, Polled, PollFailed
from rljob_runtime.coordinator.protocols import EngineStats, PeerTimeout, ReplicaReport
from rljob_runtime.coordinator.settings import Settings
from rljob_runtime.scheduling.liveness import Progress, Relapses
from rljob_runtime.scheduling.trajectory import TrajectoryKey
from rljob_runtime.simulation import clock


def test_idle_is_not_stalled():
    progress = Progress(10.0)
    assert not any(progress.stalled(False, 5, now) for now in (0.0, 100.0, 200.0))
    assert not progress.stalled(True, 5, 205.0), "it has work since a moment ago"
    assert progress.stalled(True, 5, 210.0)


def test_another_incarnation_has_failed_nobody():
    relapses = Relapses(600.0)
    assert not relapses.note("a", 1, 0.0)
    assert not relapses.note("a", 2, 1.0)
    assert not relapses.note("b", 1, 2.0)
    assert relapses.note("a", 1, 3.0)


class Wedged:
    """A replica that answers, holds a request and computes nothing."""

    name = "rollout-0/replica-0"

    async def abort(self, term: int, attempts: dict[TrajectoryKey, int]) -> None:
        pass

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        await asyncio.sleep(wait_seconds)
        return ReplicaReport("boot", 0, (), 1, EngineStats(1, 0, 0.1, 0, 7, 3, 0, 0))


def test_a_replica_that_answers_and_makes_no_token_is_lost(tmp_path):
    replica = Wedged()

    async def follow() -> tuple[float, PollFailed]:
        events: asyncio.Queue[Polled | PollFailed] = asyncio.Queue()
        settings = replace(Settings.of(job()), stall=10.0)
        herd = Herd(None, 1, settings, EngineWatch(), events.put_nowait, lambda: {replica.name: replica})
        await herd.track({})
        while isinstance(event := await events.get(), Polled):
            pass
        await herd.close()
        return asyncio.get_running_loop().time(), event

    seconds, failed = clock.run(follow())
    assert failed.replica is replica
    assert isinstance(failed.error, PeerTimeout)
    assert 10.0 <= seconds < 12.0


def test_a_machine_that_fails_again_soon_is_reported_as_one_that_keeps_failing(tmp_path):
    stage = Stage(tmp_path / "state.db")

    async def twice(stage):
        for closed in (1, 2):
            await until(lambda closed=closed: len(stage.closed) == closed)
            stage.world.kill("rollout-1")

    stage.play(twice)
    reasons = [suspect.reason for report in stage.control.reports for suspect in report.suspects]
    assert KEEPS_FAILING in reasons
    assert reasons[0] != KEEPS_FAILING
