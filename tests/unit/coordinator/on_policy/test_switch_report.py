"""What a round says about its switches: each one, or one reason and a sentence for none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import Finished, FinishedOutcome, LayoutSwitchesReport, SwitchesState
from rljob_runtime.coordinator.fleet.machine import RolloutMachine
from rljob_runtime.coordinator.on_policy.switch_report import MOST_LISTED, switches_report
from rljob_runtime.coordinator.on_policy.switcher import Switcher
from rljob_runtime.coordinator.store.tables.rounds import Rounds
from rljob_runtime.protocols import KvRefusal, Mismatch
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.scheduling.layouts.fleet_layout import SwitchCount
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch, SwitchLook
from rljob_runtime.simulator.core import virtual_time
from tests.support.forced_switches import Script
from tests.support.simulated_job import Stage, job, until

DECIDED = SwitchDecision(SwitchOutcome.SWITCHED, 2, State.RECOMPUTE, seconds=0.51234, gain=3.21987, without=10.0)


def switch(reached: int | None = 2, responses: int = 3, **changes: Any) -> LayoutSwitch:
    keys = tuple(TrajectoryKey(PromptKey(0, index), 0) for index in range(responses))
    values = {"decision": DECIDED, "at": 12.34567, "seconds": {"stop": 0.1, "load": 0.3125}}
    return LayoutSwitch("rollout-0", 1, 2, **{**values, **changes}, responses=keys, reached=reached)


def test_a_switch_is_listed_with_prediction_and_measurement() -> None:
    report = switches_report([switch(last_token=19.5)], DECIDED)
    assert report.to_dict() == {
        "state": "Switched",
        "made": 1,
        "failed": 0,
        "responses": 3,
        "seconds": 0.412,
        "kvBytes": 0,
        "predictedGainSeconds": 3.22,
        "gainSeconds": 2.846,
        "switches": [
            {
                "machine": "rollout-0",
                "atSeconds": 12.346,
                "fromSize": 1,
                "toSize": 2,
                "reachedSize": 2,
                "responses": 3,
                "state": "Recompute",
                "kvBytes": 0,
                "predictedSeconds": 0.512,
                "seconds": 0.412,
                "predictedGainSeconds": 3.22,
                "gainSeconds": 2.846,
            }
        ],
    }


def test_gains_are_summed_over_switches_that_have_both() -> None:
    built = replace(DECIDED, unpaid=20.0, unpaid_in_round=30.0)
    switches = [switch(last_token=19.5), switch(last_token=20.5, decision=built), switch(), switch(decision=None)]
    report = switches_report(switches, DECIDED)
    assert report.predicted_gain_seconds == pytest.approx(3.22 + 3.22 - 30.0, abs=0.001)
    assert report.gain_seconds == pytest.approx(2.846 + 1.846, abs=0.002)
    assert [one.predicted_seconds for one in report.switches] == [0.512, 20.512, 0.512, None]


def test_responses_that_kept_no_kv_are_told_by_reason() -> None:
    ended = TrajectoryKey(PromptKey(9, 9), 0)
    not_written = dict.fromkeys([*switch().responses[:2], ended], KvRefusal.NO_ROOM)
    first = switch(not_written=not_written, not_taken=Counter({Mismatch.DAMAGED: 1}))
    report = switches_report([first, switch(not_taken=Counter({Mismatch.DAMAGED: 4}))], DECIDED)
    assert {one.reason: one.responses for one in report.recomputed} == {"NoRoom": 2, "Damaged": 5}
    assert [one.recompute_reason for one in report.switches] == ["NoRoom", "Damaged"]


@pytest.mark.parametrize("reached", [1, 0], ids=["refused", "lost"])
def test_a_round_whose_switches_failed_says_so_and_lists_them(reached: int) -> None:
    report = switches_report([switch(reached)], DECIDED)
    assert (report.state, report.reason, report.made, report.failed) == (SwitchesState.NOT_SWITCHED, "Failed", 0, 1)
    assert [one.reached_size for one in report.switches] == [reached]


def test_one_that_reached_its_size_is_enough() -> None:
    report = switches_report([switch(0), switch(2), switch(1)], DECIDED)
    assert (report.state, report.reason, report.made, report.failed) == (SwitchesState.SWITCHED, None, 1, 2)


def test_a_switch_that_has_not_ended_is_not_told() -> None:
    report = switches_report([switch(None)], DECIDED)
    assert (report.reason, report.made, report.failed, report.switches) == ("NotChecked", 0, 0, ())


def test_a_switch_without_a_prediction_is_told_without_one() -> None:
    (one,) = switches_report([switch(decision=None, last_token=19.5)], None).switches
    assert one.predicted_seconds is one.predicted_gain_seconds is one.gain_seconds is None


@pytest.mark.parametrize(
    ("reached", "last_token", "scattered"),
    [(1, 19.5, False), (0, 19.5, False), (2, None, False), (2, 19.5, True)],
    ids=["refused", "lost", "no token", "ended elsewhere"],
)
def test_nothing_is_measured_of_a_switch_whose_responses_did_not_end_there(
    reached: int, last_token: float | None, scattered: bool
) -> None:
    (one,) = switches_report([switch(reached, last_token=last_token, scattered=scattered)], DECIDED).switches
    assert one.gain_seconds is None


@pytest.mark.parametrize(
    ("imported", "state", "nbytes"), [(0, "Recompute", 0), (64, "Migrate", 6400), (32, "Migrate", 3200)]
)
def test_the_state_is_what_was_done_and_not_what_was_predicted(imported: int, state: str, nbytes: int) -> None:
    migrate = SwitchDecision(SwitchOutcome.SWITCHED, 2, State.MIGRATE)
    for decision in (DECIDED, migrate, None):
        made = switch(decision=decision, exported_tokens=64, exported_bytes=6400, imported_tokens=imported)
        report = switches_report([made, made], decision)
        assert [(one.state, one.kv_bytes) for one in report.switches] == [(state, nbytes)] * 2
        assert report.kv_bytes == 2 * nbytes


def test_a_switch_without_a_response_carries_nothing_over() -> None:
    (one,) = switches_report([switch(responses=0)], DECIDED).switches
    assert one.state is None


def test_the_list_is_bounded_and_the_sums_are_not() -> None:
    report = switches_report([switch() for _ in range(3 * MOST_LISTED)], DECIDED)
    assert len(report.switches) == MOST_LISTED
    assert (report.made, report.responses) == (3 * MOST_LISTED, 9 * MOST_LISTED)
    assert LayoutSwitchesReport.model_validate(report.to_dict()) == report


@pytest.mark.parametrize("outcome", [one for one in SwitchOutcome if one is not SwitchOutcome.SWITCHED])
def test_each_outcome_is_a_reason_with_a_sentence(outcome: SwitchOutcome) -> None:
    report = switches_report([], SwitchDecision(outcome, gain=0.25, without=9.0))
    assert (report.state, report.reason) == (SwitchesState.NOT_SWITCHED, outcome.value)
    assert report.message
    assert "{" not in report.message


def test_no_gain_is_told_in_seconds() -> None:
    report = switches_report([], SwitchDecision(SwitchOutcome.NO_GAIN, gain=0.25, without=9.0))
    assert report.message is not None
    assert report.message.startswith("the best switch was predicted to save 0.25 s of 9.00 s: ")
    loss = switches_report([], SwitchDecision(SwitchOutcome.NO_GAIN, gain=-1.0, without=0.5))
    text = "with the best switch the rest of the round was predicted to take 1.00 s longer than the 0.50 s without it"
    assert (loss.reason, loss.message) == ("NoGain", text)
    unknown = switches_report([], SwitchDecision(SwitchOutcome.NO_GAIN))
    assert unknown.message is not None
    assert "save nothing of" in unknown.message


def test_a_round_without_a_look_says_so() -> None:
    report = switches_report([], None)
    assert (report.reason, report.message) == ("NotChecked", "the round ended before machines were looked at")


def stage_of(folder: Path, policy: Script) -> Stage:
    """One round on two machines of four accelerators, which is long enough for switches of both."""
    sizes = {"slotsPerMachine": 4, "allowedTensorParallelSizes": [1, 2, 4], "engine": "Reference", "machines": 2}
    spec = job(1, 6, 4, rollout=sizes, data={"maxResponseTokens": 400}, adaptiveTensorParallel={"enabled": True})
    return Stage(folder / "state.db", job=spec, replicas=4, sizes=(1, 2, 4), switch_policy=policy)


@pytest.mark.parametrize(
    ("refuses", "killed", "made", "failed"),
    [(False, None, 2, 0), (False, "rollout-1", 2, 0), (True, None, 0, 2)],
    ids=["made", "new processes", "refused"],
)
def test_a_restarted_coordinator_counts_the_switches_of_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool, killed: str | None, made: int, failed: int
) -> None:
    """Each machine may switch `maxSwitches` times in a round, whichever process coordinates it.

    New processes begin in the first size, which is no switch."""
    stage = stage_of(tmp_path, Script(None, 4, 4))
    if refuses:
        stage.world.site = replace(stage.world.site, wider=stage.world.site.wider[:1])
    told, changed, change = set[tuple[str, int]](), list[tuple[str, int]](), Rounds.change_layouts
    counted = dict[str, SwitchCount]()

    def records(self: Rounds, step: int, changes: Iterable[tuple[str, int]], counts: Mapping[str, SwitchCount]) -> None:
        change(self, step, changes, counts)
        changed.extend(changes)
        counted.update(counts)

    monkeypatch.setattr(Rounds, "change_layouts", records)

    class Watching(Script):
        def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
            told.update((one.name, one.switches) for one in look.machines)
            return {}

    async def lives() -> Finished | None:
        running = asyncio.create_task(stage.coordinate())
        await until(lambda: len(counted) == 2)
        if killed is not None:
            stage.world.kill(killed)
            await until(lambda: changed[-1] == (killed, 1))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        stage.switch_policy = Watching(None)
        return await stage.coordinate()

    finished = virtual_time.run(lives())
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert told == {("rollout-0", 1), ("rollout-1", 1)}
    report = stage.closed[0].layout_switches
    assert report is not None
    state = SwitchesState.SWITCHED if made else SwitchesState.NOT_SWITCHED
    assert (report.state, report.made, report.failed, report.switches) == (state, made, failed, ())
    assert report.reason == (None if made else "Failed")


def test_a_switch_that_ends_as_its_stage_is_interrupted_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round goes on with another stage of the same coordinator, which knows what the store has."""
    stage = stage_of(tmp_path, Script("rollout-0", 4))
    run, interrupted = Switcher._run, list[str]()

    async def runs(self: Switcher, switch: LayoutSwitch, machine: RolloutMachine) -> None:
        await run(self, switch, machine)
        interrupted.append(switch.machine)
        stage.coordinator.loop.generation.interrupt()

    monkeypatch.setattr(Switcher, "_run", runs)
    finished = stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert interrupted == ["rollout-0"]
    report = stage.closed[0].layout_switches
    assert report is not None
    assert (report.made, report.failed) == (1, 0)
