"""Samples of jobs under faults: the real writer, and one file for each round at the end."""

from dataclasses import replace

import pytest

from rljob_api.spec.training import Mode
from rljob_runtime.coordinator.samples.writer import SampleWriter
from rljob_runtime.samples import EvaluationSampleFolder, SampleFolder
from rljob_runtime.simulator.drawn_scenario import draw_scenario, plan_of
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.run import simulate
from rljob_runtime.simulator.scenario import Evaluated
from tests.support.examples import examples
from tests.support.rows import slow

SEEDS = (11, 5, 10, 2, 0, 1, 4, 6, 7, 8, 9, 3)[: examples(12)]
"""Episodes and short jobs first: a quick run plays the first ones."""
EVALUATION = Evaluated(prompts=3, responses=2, every_rounds=2)


@pytest.mark.parametrize("mode", [Mode.ASYNCHRONOUS, *slow(Mode.ON_POLICY)])
def test_each_round_has_one_file_under_faults(mode):
    for seed in SEEDS:
        scenario = replace(draw_scenario(seed, mode), samples=True)
        outcome = simulate(scenario, plan_of(scenario))
        assert outcome.passed, f"seed {seed}: {outcome.violation}"


def violation(*evaluations: Evaluated) -> str:
    # A short job with episodes.
    drawn = draw_scenario(21, Mode.ON_POLICY)
    assert drawn.episodes is not None
    scenario = replace(drawn, rounds=3, samples=True, evaluations=evaluations)
    outcome = simulate(scenario, FaultPlan())
    return str(outcome.violation)


def test_a_round_without_a_file_is_noticed(monkeypatch):
    write = SampleFolder.write
    monkeypatch.setattr(
        SampleFolder, "write", lambda self, number, samples, keep: number == 2 or write(self, number, samples, keep)
    )
    assert "rounds [2] have no samples" in violation()


def test_a_response_that_is_missing_or_twice_is_noticed(monkeypatch):
    texts = SampleWriter._texts

    async def without_first_group(self, step, prompts):
        found = await texts(self, step, prompts)
        return [one for one in found if one.prompt_id != found[0].prompt_id]

    async def doubled(self, step, prompts):
        return 2 * await texts(self, step, prompts)

    monkeypatch.setattr(SampleWriter, "_texts", without_first_group)
    assert "its file has other groups" in violation()
    monkeypatch.setattr(SampleWriter, "_texts", doubled)
    assert "twice" in violation()


def test_an_evaluation_without_a_file_is_noticed(monkeypatch):
    monkeypatch.setattr(EvaluationSampleFolder, "write", lambda self, number, samples, keep: None)
    assert "has no samples after rounds" in violation(EVALUATION)


@pytest.mark.slow  # as above
def test_an_evaluation_with_samples_of_another_one_is_noticed(monkeypatch):
    texts = SampleWriter._texts

    async def other_rewards(self, due, prompts):
        return [replace(one, reward=9.5) if due.evaluation else one for one in await texts(self, due, prompts)]

    async def one_missing(self, due, prompts):
        return (await texts(self, due, prompts))[1 if due.evaluation else 0 :]

    monkeypatch.setattr(SampleWriter, "_texts", other_rewards)
    assert "its samples have the average 9.5" in violation(EVALUATION)
    monkeypatch.setattr(SampleWriter, "_texts", one_missing)
    assert "were asked for" in violation(EVALUATION)
