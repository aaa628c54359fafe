"""Evaluations in whole simulated jobs of both modes: when they run, with which weights, and what interrupts them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome, TargetPhase
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.simulator.core.events import Event, Generated, Submitted
from tests.support.crashes import play_through
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job, until

MODES = pytest.mark.parametrize("mode", list(Mode))
ONE_MODE = pytest.mark.parametrize("mode", [Mode.ASYNCHRONOUS, *slow(Mode.ON_POLICY)])
"""For tests that play a job many times."""
CHECK = {"name": "check", "everyRounds": 2, "responsesPerPrompt": 2, "maxPrompts": 3}


def evaluated(stage: Stage) -> list[tuple[str, int]]:
    return [(result.name, result.round) for result in stage.evaluated]


@MODES
def test_first_every_n_and_last_weights_are_evaluated(tmp_path: Path, mode: Mode) -> None:
    stage = Stage(tmp_path / "state.db", job(rounds=5, mode=mode, evaluation=[CHECK]))
    finished = stage.play()
    assert finished is not None
    assert stage.rounds == [1, 2, 3, 4, 5]
    assert evaluated(stage) == [("check", 0), ("check", 2), ("check", 4), ("check", 5)]
    for result in stage.evaluated:
        assert (result.prompts, result.responses_per_prompt, result.failed) == (3, 2, 0)
        assert result.average is not None


@ONE_MODE
def test_result_survives_a_coordinator_that_is_killed_at_any_moment(tmp_path: Path, mode: Mode) -> None:
    """The responses that have rewards are kept, and the others are generated again from the same seeds.

    Simulated weights of another version number give other texts, so only equal versions are compared.
    """

    def played(name: str, crashes: list[int]) -> tuple[Stage, int]:
        stage = Stage(tmp_path / name, job(rounds=2, mode=mode, evaluation=[CHECK]))
        return stage, play_through(stage, crashes)

    whole, lives = played("whole.db", [])
    assert lives == 1
    expected = {(result.round, result.weight_version): result.average for result in whole.evaluated}
    assert sorted(step for step, _ in expected) == [0, 2]
    again = compared = 0
    for moment in range(8, 120, 9):
        stage, lives = played(f"{moment}.db", [moment])
        again += lives - 1
        found = {(result.round, result.weight_version): result.average for result in stage.evaluated}
        assert [step for step, _ in found] == [0, 2], f"killed at moment {moment}"
        same = found.keys() & expected.keys()
        assert {key: found[key] for key in same} == {key: expected[key] for key in same}, f"killed at moment {moment}"
        compared += (lives - 1) * len(same)
        assert all(result.failed == 0 for result in stage.evaluated)
    assert again > 5, "most of these moments are within the run"
    assert compared > 5, "most of them keep the version"


@MODES
def test_result_survives_the_loss_of_a_machine(tmp_path: Path, mode: Mode) -> None:
    stage = Stage(tmp_path / "state.db", job(rounds=2, mode=mode, evaluation=[{**CHECK, "maxPrompts": 20}]))
    lost: list[str] = []

    def lose(event: Event) -> None:
        if isinstance(event, Submitted) and event.key.prompt.evaluation and not lost:
            lost.append(event.replica)
            asyncio.get_running_loop().call_later(0.1, stage.world.process(event.replica).kill)

    stage.watchers.append(lose)
    assert stage.play() is not None
    undisturbed = Stage(tmp_path / "whole.db", job(rounds=2, mode=mode, evaluation=[{**CHECK, "maxPrompts": 20}]))
    undisturbed.play()
    assert lost
    assert [one.average for one in stage.evaluated] == [one.average for one in undisturbed.evaluated]
    assert all(one.failed == 0 for one in stage.evaluated)


def test_idle_replicas_and_updates_are_used_before_training_waits(tmp_path: Path) -> None:
    """A round with one long response leaves a machine idle; the update takes longer than the rest."""
    stage = Stage(tmp_path / "state.db", job(rounds=1, prompts=1, responses=2, machines=2, evaluation=[CHECK]))
    order: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Submitted | Generated):
            ours = event.key.prompt.evaluation is not None
            order.append(f"{type(event).__name__} {'evaluation' if ours else 'round'}")

    stage.watchers.append(watch)
    stage.play()
    round_ends = max(place for place, what in enumerate(order) if what == "Generated round")
    assert "Submitted evaluation" in order[:round_ends], "the replica with the shorter response is idle"
    assert order.index("Submitted evaluation") > order.index("Generated round"), "and not before"
    first, last = stage.evaluated
    assert first.times.idle_seconds > 0
    assert first.times.waiting_seconds == pytest.approx(0, abs=0.6)
    assert last.times.waiting_seconds > 0, "nothing else is left to do"
    assert last.times.idle_seconds == 0


@MODES
def test_failed_rewards_are_missing_and_not_zero(tmp_path: Path, mode: Mode) -> None:
    fails = {"evaluation:check/0.1": 100}
    stage = Stage(tmp_path / "state.db", job(rounds=1, mode=mode, evaluation=[CHECK]), fails=fails)
    stage.play()
    first, last = stage.evaluated
    assert (first.failed, first.missing_prompts) == (2, 1)
    assert (last.failed, last.missing_prompts) == (0, 0)


@ONE_MODE
def test_evaluation_is_abandoned_if_the_job_pauses_after_the_update(tmp_path: Path, mode: Mode) -> None:
    """The update is kept; the weights of the evaluation are replaced."""
    slow = [{**CHECK, "maxPrompts": 500, "responsesPerPrompt": 4}]
    stage = Stage(tmp_path / "state.db", job(rounds=2, mode=mode, evaluation=slow))

    async def pause(stage: Stage) -> None:
        await until(lambda: any(report.stage == "Evaluating" for report in stage.control.reports))
        stage.control.set_phase(TargetPhase.SUSPEND)
        await until(lambda: stage.control.reports[-1].stage == "Suspended")
        await asyncio.sleep(5.0)
        stage.control.set_phase(TargetPhase.RUN)

    finished = stage.play(pause)
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert [result.round for result in stage.evaluated] == [2]
    reasons = {warning.reason for report in stage.control.reports for warning in report.warnings}
    assert "EvaluationAbandoned" in reasons


def test_timeline_shows_each_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    span = Timeline.span

    def noted(self: Timeline, row: str, name: str, since: float, **args: Any) -> None:
        found.append((row, name, args.get("round")))
        span(self, row, name, since, **args)

    monkeypatch.setattr(Timeline, "span", noted)
    Stage(tmp_path / "state.db", job(rounds=2, evaluation=[CHECK])).play()
    shown = [(row, number) for row, name, number in found if name == "evaluation"]
    assert shown == [("coordinator/evaluation check", 0), ("coordinator/evaluation check", 2)]


def test_overlap_with_training_is_a_warning(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "state.db", job(rounds=1, evaluation=[CHECK]))
    stage.source.overlaps = {"check": 2}
    stage.play()
    (warning,) = {one for report in stage.control.reports for one in report.warnings}
    assert (warning.reason, warning.message) == (
        "EvaluationOverlap",
        "training has prompts of evaluations: 2 of evaluation check; remove them from one of the two",
    )
