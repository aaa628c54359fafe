"""Replicas that answer and do nothing, machines that fail again and again."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rljob_api.constants import KEEPS_FAILING
from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.generation.engine_observer import EngineObserver
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.protocols import Delta, EngineStats, GenerateRequest, PeerTimeout, Refused, ReplicaReport
from rljob_runtime.protocols.trajectory import FinishReason, Lease, PromptKey, Sampling, TrajectoryKey
from rljob_runtime.scheduling.fault_detection.stall_detection import ProgressMonitor, RestartHistory, StalledLinks
from rljob_runtime.scheduling.round_plan import Launch
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.peers.engines.replica import SimulatedReplica
from tests.support.simulated_job import Stage, job, until


def test_idle_is_not_stalled():
    progress = ProgressMonitor(10.0)
    assert not any(progress.stalled(False, 5, now) for now in (0.0, 100.0, 200.0))
    assert not progress.stalled(True, 5, 205.0), "it has work since a moment ago"
    assert progress.stalled(True, 5, 210.0)


def test_another_incarnation_has_no_failures():
    relapses = RestartHistory(600.0)
    assert not relapses.record("a", 1, 0.0)
    assert not relapses.record("a", 2, 1.0)
    assert not relapses.record("b", 1, 2.0)
    assert relapses.record("a", 1, 3.0)


def test_a_feeder_is_blamed_once_two_have_waited_for_it_in_vain():
    still = StalledLinks(600.0)
    assert not still.record("a", "b", 1, 0.0)
    assert not still.record("a", "b", 1, 100.0), "it may be b that takes nothing"
    assert not still.record("c", "b", 1, 200.0)
    assert still.record("a", "b", 2, 300.0), "another pod, and the same again"
    assert still.record("a", "d", 1, 400.0)
    assert not StalledLinks(600.0).record("a", "b", 1, 0.0)
    assert not still.record("a", "b", 1, 1001.0), "that is long ago"


class Wedged:
    """A replica that answers, holds so many requests and computes nothing."""

    name = "rollout-0/replica-0"

    def __init__(self, holds: int, ends: tuple[Delta, ...] = ()) -> None:
        self.holds = holds
        self.ends = ends

    async def abort(self, term: int, attempts: dict[TrajectoryKey, int]) -> None:
        pass

    async def submit(self, term: int, requests: tuple[GenerateRequest, ...]) -> None:
        pass

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        await asyncio.sleep(wait_seconds)
        ends = self.ends if not after else ()
        return ReplicaReport("boot", 1, ends, 1, EngineStats(self.holds, 0, 0.1, 0, 7, 3, 0, 0))


class Lost:
    """What a fleet is told of its replicas."""

    def __init__(self) -> None:
        self.lost: list[tuple[Any, Exception]] = []
        self.timeline = Timeline()

    def mark_replica_lost(self, replica: Any, reason: str, error: Exception) -> None:
        self.lost.append((replica, error))

    async def run_while_member(self, replica: Any, call: Any) -> None:
        await call


KEY = TrajectoryKey(PromptKey(0, 0), 0)
ASKED = GenerateRequest(KEY, 3, (1,), Sampling(max_tokens=8, temperature=1.0, seed=1), weight_version=1)
LAUNCHED = Launch(KEY, Lease(Wedged.name, 3))


def followed(replica: Wedged, *commands: Callable[[ReplicaPool], Awaitable[None]]) -> tuple[float, Lost]:
    """When that replica was found wanting, or a minute; and what the fleet was told."""

    async def follow() -> tuple[float, Lost]:
        fleet = Lost()
        settings = replace(Settings.of(job()), stall=10.0)
        pool = ReplicaPool(fleet, 1, settings, EngineObserver(), lambda event: None, lambda: {replica.name: replica})
        await pool.track({})
        for command in commands:
            await command(pool)
        await until(lambda: bool(fleet.lost) or asyncio.get_running_loop().time() > 60.0)
        await pool.close()
        return asyncio.get_running_loop().time(), fleet

    return virtual_time.run(follow())


@pytest.mark.parametrize(
    ("holds", "commands"),
    [
        pytest.param(1, (), id="it computes nothing"),
        pytest.param(0, (lambda pool: pool.submit({Wedged.name: [ASKED]}),), id="it does not know of it"),
    ],
)
def test_a_replica_that_answers_and_makes_no_token_is_lost(holds, commands):
    replica = Wedged(holds)
    seconds, fleet = followed(replica, *commands)
    ((lost, error),) = fleet.lost
    assert lost is replica
    assert isinstance(error, PeerTimeout)
    assert 10.0 <= seconds < 12.0


def test_a_replica_that_owes_nothing_is_kept():
    ask = lambda pool: pool.submit({Wedged.name: [ASKED]})  # noqa: E731
    ended = Delta(KEY, 3, 0, (5,), (-0.1,), 1, FinishReason.STOP)
    assert not followed(Wedged(0))[1].lost
    assert not followed(Wedged(0, (ended,)), ask)[1].lost, "it has ended"
    assert not followed(Wedged(0), ask, lambda pool: pool.abort([LAUNCHED]))[1].lost, "it was stopped"
    assert followed(Wedged(0, (replace(ended, finish_reason=None),)), ask)[1].lost, "it has not ended"
    assert followed(Wedged(0, (replace(ended, attempt=2),)), ask)[1].lost, "an earlier attempt has"


@pytest.mark.parametrize("mode", list(Mode))
def test_a_response_that_its_replica_does_not_know_of_goes_on_elsewhere(tmp_path, monkeypatch, mode):
    stage = Stage(tmp_path / "state.db", job=job(mode=mode))
    dropped: list[TrajectoryKey] = []
    submit = SimulatedReplica.submit

    async def forgets_one(self: SimulatedReplica, term: int, requests: Any) -> None:
        if not dropped:
            dropped.append(requests[0].key)
            requests = requests[1:]
        await submit(self, term, requests)

    monkeypatch.setattr(SimulatedReplica, "submit", forgets_one)
    assert stage.play(stall=20.0).outcome is FinishedOutcome.COMPLETE
    assert dropped
    assert any("ReplicaLost" in reasons for reasons in reasons_of(stage).values())


def test_a_machine_that_fails_again_soon_is_reported_as_failing(tmp_path):
    stage = Stage(tmp_path / "state.db")

    async def twice(stage):
        for closed in (1, 2):
            await until(lambda closed=closed: len(stage.closed) == closed)
            stage.world.kill("rollout-1")

    stage.play(twice)
    reasons = [suspect.reason for report in stage.control.reports for suspect in report.suspects]
    assert KEEPS_FAILING in reasons
    assert reasons[0] != KEEPS_FAILING


def reasons_of(stage: Stage) -> dict[str, set[str]]:
    """Of all suspects ever reported, by machine."""
    found: dict[str, set[str]] = defaultdict(set)
    for report in stage.control.reports:
        for suspect in report.suspects:
            found[suspect.machine].add(suspect.reason)
    return found


def test_only_the_relay_that_forwards_nothing_keeps_failing(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=4, machines=4), machines=4)
    network = stage.world.network
    pass_on = network._pass_on
    culprit: list[str] = []

    def passed_on(relay, seconds):
        if relay.machine not in culprit:
            pass_on(relay, seconds)

    network._pass_on = passed_on

    async def fault(stage):
        await until(lambda: len(stage.closed) == 1)
        culprit.append(stage.control.last.relay.chain[0])
        await until(lambda: KEEPS_FAILING in reasons_of(stage)[culprit[0]])
        network._pass_on = pass_on

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    blamed = {name for name, reasons in reasons_of(stage).items() if KEEPS_FAILING in reasons}
    assert blamed == set(culprit)
    assert "WeightsNotPassedOn" in reasons_of(stage)[culprit[0]]


def test_a_trainer_that_ships_nothing_makes_no_machine_keep_failing(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, machines=2), machines=2)
    network = stage.world.network
    ship = network.ship

    async def fault(stage):
        await until(lambda: len(stage.closed) == 1)
        network.ship = lambda *way: None
        try:
            async with asyncio.timeout(600):
                await until(lambda: all("WeightsNotShipped" in reasons_of(stage)[f"rollout-{one}"] for one in range(2)))
        finally:
            network.ship = ship

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    assert all(KEEPS_FAILING not in reasons for reasons in reasons_of(stage).values())


def test_a_machine_that_says_no_twice_is_not_replaced_for_it(tmp_path):
    """Weights that do not fit: each call reports it."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=6, machines=2), machines=2)
    refused: list[str] = []

    def joined():
        return stage.coordinator._fleet.joined

    async def refuse(replica, load, term, version):
        if len(refused) < 2:
            refused.append(replica.name)
            raise Refused("a tensor has another shape")
        return await load(term, version)

    async def fault(stage):
        for closed in (1, 2):
            await until(lambda closed=closed: len(stage.closed) >= closed and "rollout-1" in joined())
            for replica in joined()["rollout-1"].replicas:
                replica.load = partial(refuse, replica, replica.load)

    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    assert len(refused) == 2
    assert reasons_of(stage)["rollout-1"] == {"WeightsNotLoaded"}
