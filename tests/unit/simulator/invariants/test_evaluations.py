"""The invariants of evaluations: each is broken by what breaks it, and by nothing that is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.spec.training import Mode
from rljob_runtime.protocols.trajectory import FinishReason, Group, PromptKey, Response, ScoredResponse, TrajectoryKey
from rljob_runtime.scheduling.evaluation import evaluation_key
from rljob_runtime.simulator.core.events import Event, Row, Submitted, Trained
from rljob_runtime.simulator.invariants.evaluations import EvaluationRecord
from tests.support.simulated_job import Stage, job

ASKED = evaluation_key("check", 1, 0)
CHECK = {"name": "check", "everyRounds": 1, "responsesPerPrompt": 1, "maxPrompts": 2}


def group(prompt: PromptKey) -> Group:
    response = Response(TrajectoryKey(prompt, 0), 1, 1, (5,), (-0.1,), FinishReason.STOP, "a")
    return Group(prompt, (1,), (ScoredResponse(response, 0.5),))


def trained(*groups: Group) -> Trained:
    return Trained(2, groups, 0, 0, 0.0, ())


def test_an_update_has_no_response_of_an_evaluation() -> None:
    ours = group(PromptKey(0, 3))
    assert EvaluationRecord.trained(trained(ours)) is None
    assert EvaluationRecord.trained(trained(ours, group(ASKED))) == "step 2 trains on ['evaluation:check/1.0.0']"


@pytest.mark.parametrize("mode", Mode)
def test_a_job_that_trains_on_one_is_noticed(tmp_path: Path, mode: Mode) -> None:
    stage = Stage(tmp_path / "state.db", job(rounds=2, mode=mode, evaluation=[CHECK]))

    def mix(event: Event) -> None:
        if isinstance(event, Trained) and event.step == 2:
            event = replace(event, groups=(*event.groups, group(ASKED)))
        stage.invariants(event)

    stage.watchers[:] = [mix]
    with pytest.raises(AssertionError, match=r"never trained on: step 2 trains on \['evaluation:check/1\.0\.0'\]"):
        stage.play()


@pytest.mark.parametrize(
    ("prompt", "version", "told"),
    [
        (ASKED, 7, None),
        (ASKED, 6, "evaluation:check/1.0.0 is generated with version 6"),
        (ASKED, 8, "evaluation:check/1.0.0 is generated with version 8"),
        (PromptKey(1, 0), 6, None),
        (evaluation_key("check", 2, 0), 6, None),
    ],
    ids=["its weights", "those before", "unknown ones", "of training", "of weights that are not made"],
)
def test_a_response_is_generated_with_the_weights_of_its_step(
    prompt: PromptKey, version: int, told: str | None
) -> None:
    event = Submitted("a", TrajectoryKey(prompt, 0), 1, version, 0)
    assert EvaluationRecord.submitted(event, {6: 100, 7: 101}, [100, 101]) == told


def ended(step: int, result: str | None = None, abandoned: str | None = None) -> Row:
    return Row("evaluations", (step,), ("check", result, abandoned))


def test_each_evaluation_that_was_due_has_ended() -> None:
    record = EvaluationRecord({"check": 2})
    due = [f"check after round {step}" for step in (0, 2, 3)]
    assert record.end(3) == f"3 evaluations have not ended: {due}"
    record.commit([ended(0, result="{}"), ended(2, abandoned="the job paused"), ended(3)])
    assert record.end(3) == "1 evaluations have not ended: ['check after round 3']", "it is only begun"
    record.commit([ended(3, result="{}")])
    assert record.end(3) is None
    record.commit([replace(ended(2), values=None)])
    assert record.end(3) == "1 evaluations have not ended: ['check after round 2']", "its weights were abandoned"
    record.history_begins(2)
    record.commit([ended(3, result="{}")])
    assert record.end(3) is None, "the store knows nothing of those before"
