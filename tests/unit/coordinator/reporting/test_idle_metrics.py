"""Whole jobs under virtual time: the idle shares of a report are those of replicas that are watched from outside."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import RoundReport
from rljob_runtime.coordinator.reporting.idle_metrics import RoundActivity, with_idle_shares
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.reporting.timeline import MOST_INTERVALS, Timeline
from rljob_runtime.observers.round_metrics import round_metrics
from rljob_runtime.protocols import TrainReport
from rljob_runtime.scheduling.episodes.limits import Limits
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Event, Trained
from rljob_runtime.simulator.peers.harness import HarnessScript
from rljob_runtime.timeline.idle import LEFT, LOST
from tests.support.episode_job import EpisodeStage
from tests.support.simulated_job import Stage, job

LOOK_SECONDS = 0.005
SHARES = ("idle_tail", "idle_environments", "idle_rewards", "idle_training", "idle_weights")
TRAINED = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0)


def shares(report: RoundReport) -> list[float]:
    return [getattr(report, name) for name in SHARES]


def played_and_watched(stage: Stage) -> tuple[dict[float, list[bool]], list[float]]:
    """Play a job; return by time which of its replicas were busy, and the times at which rounds closed."""
    looks: dict[float, list[bool]] = {}
    closed: list[float] = []
    stage.observers.append(lambda report, trained: closed.append(asyncio.get_running_loop().time()))

    async def look(stage: Stage) -> None:
        while True:
            # A replica counts from its machine's joining on.
            members = stage.coordinator._fleet.available() if stage.coordinator is not None else {}
            peers = [stage.world.process(name) for name in members]
            looks[asyncio.get_running_loop().time()] = [bool(one and one.peer.held) for one in peers]
            await asyncio.sleep(LOOK_SECONDS)

    stage.play(look)
    return looks, closed


@pytest.mark.parametrize("mode", Mode)
def test_the_shares_and_the_work_of_the_replicas_add_up_to_one(tmp_path: Path, mode: Mode) -> None:
    spec: dict[str, Any] = {"mode": mode}
    stage = Stage(tmp_path / "state.db", job=job(rounds=4, prompts=4, responses=4, **spec))
    looks, closed = played_and_watched(stage)
    assert len(stage.closed) == 4
    by_round: dict[int, list[bool]] = defaultdict(list)
    for report, end in zip(stage.closed, closed, strict=True):
        assert report.seconds is not None
        for now, busy in looks.items():
            if end - report.seconds <= now < end:
                by_round[report.round] += busy
        assert all(0 <= share <= 1 for share in shares(report))
        worked = sum(by_round[report.round]) / len(by_round[report.round])
        assert sum(shares(report)) == pytest.approx(1 - worked, abs=0.05)
    assert sum(map(sum, map(shares, stage.closed))) > 0.1, "there was idle time"


def test_a_synchronous_round_waits_for_training_and_weights(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "state.db", job=job(rounds=2, prompts=4, responses=4))
    stage.play()
    for report in stage.closed:
        assert report.seconds is not None
        assert report.training_seconds is not None
        assert report.broadcast_seconds is not None
        assert report.idle_training == pytest.approx(report.training_seconds / report.seconds, abs=0.01)
        assert report.idle_weights == pytest.approx(report.broadcast_seconds / report.seconds, abs=0.01)


def test_a_round_at_whose_end_no_machine_is_left_has_the_shares_until_then(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "state.db", job=job(rounds=2, prompts=4, responses=4), machines=1)
    left: list[int] = []

    def lose(event: Event) -> None:
        if isinstance(event, Trained) and event.step == 1:
            stage.coordinator._fleet.mark_lost("rollout-0", "CallFailed")

    stage.watchers.append(lose)
    stage.observers.append(lambda report, trained: left.append(len(stage.coordinator._fleet.available())))
    stage.play()
    assert left == [0, 1]
    first, second = stage.closed
    assert first.training_seconds is not None
    assert first.generation_seconds is not None
    lived = first.generation_seconds + first.training_seconds
    assert first.idle_training == pytest.approx(first.training_seconds / lived, abs=0.01)
    assert first.idle_weights == pytest.approx(0, abs=0.01)
    assert second.idle_training is not None


def test_a_machine_that_was_lost_before_does_not_leave_the_fleet_again(tmp_path: Path) -> None:
    """Else the next round would count it as a member until it is replaced."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=1, prompts=4, responses=4), machines=2)
    told: list[str] = []

    def lose(event: Event) -> None:
        if isinstance(event, Trained) and event.step == 1:
            fleet = stage.coordinator._fleet
            fleet.timeline.event = lambda name, *more: told.append(name)
            fleet.mark_lost("rollout-0", "CallFailed")
            fleet._remove("rollout-0", "Replaced")
            fleet._remove("rollout-1", "Drained")
            del fleet.timeline.event

    stage.watchers.append(lose)
    stage.play()
    assert told == [LOST, LEFT], "one was lost, and only the other one left"


def test_the_shares_are_in_prometheus_and_tensorboard(tmp_path: Path) -> None:
    report = RoundReport(round=1, **{name: 0.05 * place for place, name in enumerate(SHARES, 1)})
    metrics = CoordinatorMetrics()
    metrics.round(report, TRAINED)
    for name in SHARES:
        assert metrics.registry.get_sample_value(f"rljob_coordinator_{name}") == getattr(report, name)
        assert round_metrics(report, TRAINED)[f"round/{name}"] == getattr(report, name)


def test_a_round_whose_intervals_were_lost_has_no_shares() -> None:
    async def lost() -> Timeline:
        timeline = Timeline()
        timeline.busy("a/replica-0", "generate", held=True)
        await asyncio.sleep(1)
        assert timeline.recorded() is not None
        assert [one.until for one in timeline.recorded() or ()] == [1.0]
        for _ in range(MOST_INTERVALS + 1):
            timeline.span("a", "x", 1.0)
        return timeline

    timeline = virtual_time.run(lost())
    assert timeline.recorded() is None
    report = RoundReport(round=1)
    assert with_idle_shares(report, RoundActivity(None, (0, 1), ("a/replica-0",), None)) == report


@pytest.mark.parametrize("mode", Mode)
def test_engines_that_wait_for_tools_are_idle_for_their_environments(tmp_path: Path, mode: Mode) -> None:
    """Each program waits for its tools for most of its time; what engines hold is watched from outside."""
    script = HarnessScript(turns=5, tool_seconds=4.0, seed=3)
    stage = EpisodeStage(
        tmp_path / "state.db",
        job=job(rounds=3, prompts=2, responses=2, mode=mode),
        script=script,
        limits=Limits(turns=5),
    )
    looks, closed = played_and_watched(stage)
    assert len(stage.closed) == 3
    for report, end in zip(stage.closed, closed, strict=True):
        assert report.seconds is not None
        seen = [busy for now, looked in looks.items() if end - report.seconds <= now < end for busy in looked]
        assert sum(shares(report)) == pytest.approx(1 - sum(seen) / len(seen), abs=0.05)
        assert report.idle_environments is not None
        assert report.idle_environments > 0.4
