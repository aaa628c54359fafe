"""What the coordinator does for its rewards: keeps what they learn, tells what they did, and waits for what they
lack."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from rljob_api.status import FinishedOutcome, TargetPhase
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.protocols import RewardFailed, RewardsUnavailable
from rljob_runtime.protocols.reward_stats import RewardStats
from rljob_runtime.protocols.rewards import Anchors
from rljob_runtime.scheduling.reward_timeout import AdaptiveTimeout, TimeoutRule
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.peers.inputs import SimulatedRewards
from tests.support.simulated_job import Stage, job, until


class Learning(SimulatedRewards):
    """Each response is a run of one program that takes a millisecond longer than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.timeout = AdaptiveTimeout(TimeoutRule())
        self.begins_with: list[float | None] = []

    async def score(self, prompt: object, response_text: str) -> float:
        seconds = (self.timeout.anchor("7/0") or 1.0) + 0.001
        self.timeout.record(self.timeout.decide("7/0", response_text), seconds, seconds, right=True)
        return await super().score(prompt, response_text)

    def take_anchors(self) -> Anchors:
        return {"code": risen} if (risen := self.timeout.drain_raised()) else {}

    def restore_anchors(self, anchors: Anchors) -> None:
        self.timeout.restore(anchors.get("code", {}))
        self.begins_with.append(self.timeout.anchor("7/0"))


class Crash(BaseException):
    """As SIGKILL."""


def test_a_coordinator_that_comes_back_has_its_anchors(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, prompts=3, responses=2), rewards=(first := Learning()))

    def crash(moment: str) -> None:
        if stage.rounds == [1, 2]:
            raise Crash

    async def lives() -> None:
        stage.around = crash
        with pytest.raises(Crash):
            await stage.coordinate()
        stage.around = lambda moment: None
        stage.rewards = Learning()
        assert (await stage.coordinate()).outcome is FinishedOutcome.COMPLETE

    virtual_time.run(lives())
    assert first.begins_with == [None]
    assert stage.rewards.begins_with == [first.timeout.anchor("7/0")]


def test_a_rewound_round_taught_nothing(tmp_path):
    async def fault(stage):
        await until(lambda: stage.rounds == [1, 2])
        learned.append(rewards.timeout.anchor("7/0"))
        await until(lambda: stage.rounds == [1, 2, 3])
        stage.world.kill("trainer")

    learned: list[float | None] = []
    rewards = Learning()
    stage = Stage(tmp_path / "state.db", job=job(rounds=4, prompts=3, responses=2, every_rounds=2), rewards=rewards)
    assert stage.play(fault).outcome is FinishedOutcome.COMPLETE
    assert stage.rounds == [1, 2, 3, 3, 4]
    assert rewards.begins_with == [None, *learned]


def test_the_report_has_what_the_rewards_did_in_its_round(tmp_path):
    class Programs(SimulatedRewards):
        def figures(self) -> RewardStats:
            done = super().figures()
            ended = type(done.programs)({"Exited": 3 * done.scored})
            return RewardStats(done.scored, done.seconds, programs=ended, timeouts=done.scored, shadow_timeouts=1)

    stage = Stage(tmp_path / "state.db", job=job(rounds=2, prompts=3, responses=2), rewards=Programs())
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    for report in stage.closed:
        assert (report.program_runs, report.program_timeouts) == (18, 6)
        assert (report.shadow_timeouts, report.late_programs) == (0, 0)
        assert report.reward_seconds == pytest.approx(6 * 0.1)
    line = json.loads(json.dumps(stage.closed[0].to_dict()))
    assert line["programTimeouts"] == 6


def test_a_round_without_programs_says_nothing_of_them(tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=1))
    stage.play()
    assert "programRuns" not in stage.closed[0].to_dict()


def test_metrics_show_what_the_rewards_count():
    figures = RewardStats(scored=7, seconds=1.5, timeouts=3, shadow_timeouts=2, late=1, processes=4)
    figures.failed["code", "SandboxFailed"] = 2
    figures.programs["TimedOut"] = 5
    metrics = CoordinatorMetrics(CollectorRegistry())
    metrics.watch_rewards(lambda: figures)
    shown = generate_latest(metrics.registry).decode().splitlines()
    assert {
        "rljob_coordinator_scored_samples_total 7.0",
        'rljob_coordinator_reward_failures_total{reason="SandboxFailed",rule="code"} 2.0',
        'rljob_coordinator_programs_total{end="TimedOut"} 5.0',
        "rljob_coordinator_program_timeouts_total 3.0",
        "rljob_coordinator_shadow_timeouts_total 2.0",
        "rljob_coordinator_late_programs_total 1.0",
        "rljob_coordinator_reward_processes_total 4.0",
    } <= set(shown)


def lacking(times: int):
    """Raises so often, and notes when it was called."""
    calls: list[float] = []

    def opening() -> None:
        calls.append(asyncio.get_running_loop().time())
        if len(calls) <= times:
            raise RewardsUnavailable("SandboxUnavailable", "reward tests needs a sandbox: Landlock would be right")

    return calls, opening


def test_a_missing_sandbox_is_waited_for_and_told(tmp_path):
    calls, opening = lacking(10)
    stage = Stage(tmp_path / "state.db", job=job(rounds=1), on_opening=opening)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    waits = [later - earlier for earlier, later in pairwise(calls)]
    assert len(waits) == 10
    assert all(later >= earlier - 1 for earlier, later in pairwise(waits)), "longer each time"
    assert 4 <= waits[0] <= 10
    assert 250 <= waits[-1] <= 310, "and bounded"
    told = [report for report in stage.control.reports if report.warnings]
    assert {problem.reason for report in told for problem in report.warnings} == {"SandboxUnavailable"}
    assert told[0].warnings[0].message.endswith("Landlock would be right. The job tries again at growing intervals")
    assert len({report.event for report in told}) == 1, "the same problem again is no news for the operator"
    assert stage.control.last.warnings == ()


def test_a_job_that_waits_for_a_sandbox_can_be_suspended(tmp_path):
    calls, opening = lacking(1000)
    seen = []

    async def suspend(stage):
        await until(lambda: len(calls) == 8)
        stage.control.set_phase(TargetPhase.SUSPEND)
        await until(lambda: stage.control.last.stage == "Suspended", 1.0)
        seen.append(asyncio.get_running_loop().time() - calls[-1])
        stage.coordinator.stop()

    stage = Stage(tmp_path / "state.db", job=job(rounds=1), on_opening=opening)
    assert stage.play(suspend) is None
    assert seen[0] < 60, "not only after the next try"


@pytest.mark.parametrize("how", ["suspended", "stopped"])
def test_a_job_whose_rewards_are_slow_to_open_can_be(how, tmp_path):
    seen, opening = [], []

    async def slowly(model_files):
        opening.append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(600)
        finally:
            seen.append(asyncio.get_running_loop().time())
        return stage.source

    async def meanwhile(stage):
        await until(lambda: opening)
        if how == "suspended":
            stage.control.set_phase(TargetPhase.SUSPEND)
            await until(lambda: stage.control.last.stage == "Suspended", 1.0)
        stage.coordinator.stop()

    stage = Stage(tmp_path / "state.db", job=job(rounds=1))
    stage.prompts_from = slowly
    assert stage.play(meanwhile) is None
    assert seen[0] - opening[0] < 60


def test_another_reason_to_wait_takes_the_place_of_the_first(tmp_path):
    reasons = ["SandboxUnavailable", "RewardsUnavailable", "SandboxUnavailable"]

    def opening():
        if reasons:
            raise RewardsUnavailable(reasons.pop(0), "not now")

    stage = Stage(tmp_path / "state.db", job=job(rounds=1), on_opening=opening)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    told = [tuple(problem.reason for problem in report.warnings) for report in stage.control.reports]
    assert set(told) == {(), ("SandboxUnavailable",), ("RewardsUnavailable",)}
    assert stage.control.last.warnings == ()


class Choosy(SimulatedRewards):
    """Raises for some responses of two prompts, always for the same ones; another one in their place might do."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, int] = {}

    async def score(self, prompt: object, response_text: str) -> float:
        name = str(getattr(prompt, "key", prompt))
        self.asked[name] = self.asked.get(name, 0) + 1
        if name in ("0.1", "0.4") and self.asked[name] == 2:
            raise RewardFailed("it raised for this text", by_response=True)
        return await super().score(prompt, response_text)


@pytest.mark.parametrize("mode", ["OnPolicy", "Asynchronous"])
def test_a_group_of_which_a_response_cannot_be_scored_is_given_up(tmp_path, mode):
    rewards = Choosy()
    stage = Stage(tmp_path / "state.db", job=job(rounds=3, prompts=3, responses=3, mode=mode), rewards=rewards)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    totals = stage.control.last.totals
    assert (totals.unscored_groups, totals.filtered_groups, totals.aborted_samples) == (2, 2, 2)
    assert max(rewards.asked["0.1"], rewards.asked["0.4"]) <= 3, "nothing is generated in its place"
