"""A job with adaptiveTensorParallel: from the spec to the report, the metrics, the status and the timeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import FinishedOutcome, RoundReport, SwitchesState
from rljob_runtime.coordinator.generation.observed_engines import sized_engines
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.perf_model.observed_speed import Speed, SpeedSample
from rljob_runtime.scheduling.adaptive_tp import idle_profile
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.scheduling.layouts.adaptive_switches import AdaptiveSwitches
from rljob_runtime.scheduling.layouts.layout_switch import SwitchLook
from rljob_runtime.simulator.core.events import LaidOut
from rljob_runtime.simulator.peers.engines.engine_kind import steady
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from rljob_runtime.timeline.record import Interval
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job
from tests.support.token_ledger import TokenLedger

POLICY = "rljob_runtime.coordinator.coordinator.AdaptiveSwitches"
ALL = [1, 2, 4]


class Knowing(AdaptiveSwitches):
    """The real policy, with the speed of size 4 as earlier rounds show it: free steps."""

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        wide = Speed(1, 1 << 40, 64, (SpeedSample(100, 4, 0.0, 0.5), SpeedSample(100, 1, 0.0, 0.5)))
        return super().decide(replace(look, engines=look.engines | sized_engines({4: (wide,)})))


class Eager(AdaptiveSwitches):
    """Once a round, when half of the responses are complete, it predicts half of the time saved.

    The trainer has groups by then."""

    def begin_round(self) -> None:
        super().begin_round()
        self.looks = 0

    def is_due(self, done: int, total: int, now: float) -> bool:
        return 2 * done >= total and super().is_due(done, total, now)

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        self.looks += 1
        decision = SwitchDecision(SwitchOutcome.SWITCHED, 4, State.RECOMPUTE, seconds=0.4, gain=2.0, without=4.0)
        if self.looks > 1:
            decision = SwitchDecision(SwitchOutcome.IDLE)
        return {machine.name: decision for machine in look.machines}


class Job:
    """Rounds of two machines with four accelerators each. `training_token`: seconds for each token of the trainer."""

    def __init__(
        self,
        folder: Path,
        adaptive: dict[str, Any],
        rounds: int = 1,
        stream: bool = False,
        training_token: float = 0.0,
    ) -> None:
        rollout = {"slotsPerMachine": 4, "allowedTensorParallelSizes": ALL, "engine": "Reference", "machines": 2}
        spec = job(
            rounds=rounds, prompts=12, responses=2, rollout=rollout, adaptiveTensorParallel=adaptive,
            stream=stream, data={"maxResponseTokens": 200},
        )  # fmt: skip
        self.stage = Stage(folder / "state.db", job=spec, replicas=4, sizes=(1, 2, 4))
        self.stage.world.costs = TrainerCosts(token=training_token)
        self.metrics, self.tokens, self.laid = CoordinatorMetrics(), TokenLedger(), set[int]()
        self.intervals: list[Interval] = []
        self.stage.watchers += [self.tokens, self._watch]
        self.stage.observers += [self.metrics.round, self._closed]

    def _watch(self, event: object) -> None:
        if isinstance(event, LaidOut):
            self.laid.add(event.tensor_parallel)

    def _closed(self, report: RoundReport, _: object) -> None:
        assert self.stage.coordinator is not None
        timeline = self.stage.coordinator.loop._context.reporter.timeline  # type: ignore[attr-defined]
        timeline.written(lambda record: self.intervals.extend(record.intervals))
        self.intervals += timeline.recorded() or ()

    def play(self) -> RoundReport:
        assert self.stage.play().outcome is FinishedOutcome.COMPLETE
        assert self.tokens.lost == {}
        ids = self.stage.trained_ids()
        assert len(ids) == len(set(ids)) == 12 * 2 * len(self.stage.closed)
        return self.stage.closed[-1]

    def count(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"rljob_coordinator_{name}_total", labels)


def test_a_job_that_may_switch_does_and_tells_it_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POLICY, Knowing)
    run = Job(tmp_path, {"enabled": True})
    report = run.play()
    switches = report.layout_switches
    assert switches is not None
    assert (switches.state, switches.reason) == (SwitchesState.SWITCHED, None)
    assert {one.to_size for one in switches.switches} == {one.reached_size for one in switches.switches} == {4}
    assert report.tensor_parallel_size == 1, "the size at the start of the round"
    for one in switches.switches:
        assert one.predicted_gain_seconds is not None
        assert one.predicted_gain_seconds > 0.3
        assert one.gain_seconds is not None
        assert abs(one.gain_seconds - one.predicted_gain_seconds) < 2.0, "simulated engines do as is predicted"
        assert one.predicted_seconds is not None
        assert 0 < one.seconds < 10
        assert one.state == "Recompute"
    assert sum(one.responses for one in switches.switches) > 0
    assert run.count("layout_switches", outcome="reached") == switches.made == len(switches.switches) > 0
    assert run.count("layout_switch_responses") == switches.responses
    assert run.stage.control.reports[-1].last_round == report
    bars = [one for one in run.intervals if one.name == "switch TP 1 to 4"]
    assert {one.row for one in bars} == {f"{one.machine}/machine" for one in switches.switches}
    assert all(one.until is not None and one.until > one.since for one in bars)
    assert sum(one.args["responses"] for one in bars) == switches.responses


@pytest.mark.parametrize(
    ("adaptive", "reason"),
    [
        ({"enabled": True, "sizes": [1, 2]}, "NotPredicted"),
        ({"enabled": True, "minGain": 0.999}, "NoGain"),
    ],
    ids=["a size that it may not have", "a gain that is too small"],
)
def test_a_job_that_does_not_switch_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adaptive: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(POLICY, Knowing)
    run = Job(tmp_path, adaptive)
    switches = run.play().layout_switches
    assert switches is not None
    assert (switches.state, switches.reason, switches.made) == (SwitchesState.NOT_SWITCHED, reason, 0)
    assert switches.message
    assert run.laid == {1}
    assert run.count("rounds_without_layout_switch", reason=reason) == 1


@pytest.mark.parametrize(
    ("stream", "token", "reason"),
    [(True, 0.01, "TrainingBound"), (True, 1e-6, None), (False, 0.005, None)],
    ids=["the trainer is slower", "it is faster", "it waits for the end of generation"],
)
def test_a_job_that_its_trainer_holds_back_does_not_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool, token: float, reason: str | None
) -> None:
    """In its second round: the first one measures the trainer."""
    monkeypatch.setattr(POLICY, Eager)
    job = Job(tmp_path, {"enabled": True}, rounds=2, stream=stream, training_token=token)
    switches = job.play().layout_switches
    assert switches is not None
    assert switches.reason == reason
    assert (switches.state is SwitchesState.SWITCHED) == (reason is None)


@pytest.mark.parametrize("explores", [*slow(True), False])
def test_a_job_of_short_updates_learns_to_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, explores: bool
) -> None:
    """By the real policy, and the speed that one machine measured after an update that was too short for it.

    The job earns ten times as much, so that it needs no hundred rounds."""
    monkeypatch.setattr(idle_profile, "OVERRUN_SHARE", 0.1 if explores else 0.0)
    monkeypatch.setattr(idle_profile, "SAVED_SHARE", 0.3)
    job = Job(tmp_path, {"enabled": True, "sizes": [1, 4]}, rounds=6)
    wider = tuple((size, steady(0.2 / size)) for size in ALL[1:])
    job.stage.world.site = replace(job.stage.world.site, engine=steady(0.2), wider=wider, layout_seconds=1.0)
    job.play()
    found = [report.layout_switches for report in job.stage.closed]
    outcomes = [one.reason or one.state for one in found if one is not None]
    before = outcomes.index(SwitchesState.SWITCHED) if explores else len(found)
    assert before > 0
    assert outcomes[:before] == ["NotPredicted"] * before
    assert outcomes[before:] == [SwitchesState.SWITCHED] * (len(found) - before)
    assert job.stage.coordinator is not None
    assert job.stage.coordinator.layout_stats().visits.overruns == (1 if explores else 0)


def test_a_size_that_is_refused_is_a_failed_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POLICY, Knowing)
    run = Job(tmp_path, {"enabled": "Auto", "sizes": [1, 4]})
    run.stage.world.site = replace(run.stage.world.site, wider=run.stage.world.site.wider[:1])
    switches = run.play().layout_switches
    assert switches is not None
    assert (switches.state, switches.reason) == (SwitchesState.NOT_SWITCHED, "Failed")
    assert {one.reached_size for one in switches.switches} == {1}
    assert run.count("layout_switches", outcome="failed") == switches.failed == len(switches.switches) > 0
    events = [one for one in run.intervals if one.name == "LayoutSwitchFailed"]
    assert len(events) == switches.failed
    assert "keeps TP 1" in events[0].args["message"]


def test_a_job_without_the_field_never_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POLICY, None)
    run = Job(tmp_path, {"enabled": False})
    report = run.play()
    assert report.layout_switches is None
    assert "layoutSwitches" not in report.to_dict()
    assert run.laid == {1}
