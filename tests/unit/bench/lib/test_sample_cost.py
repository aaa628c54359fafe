"""What samples cost: the same responses with samples and without, in the product's store and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljob_bench.lib import sample_cost
from rljob_bench.lib.sample_cost import EVALUATION, Added, SampleCost, sums_of
from rljob_bench.rollout import SAMPLES_GOAL, Turn, sample_figures
from rljob_runtime.models.source import cache_folder, resolve
from rljob_runtime.samples import EvaluationSampleFolder, LengthFolder, SampleFolder

MODEL = "package://rljob/toy"
GROUP = 4


async def test_the_same_responses_are_recorded_with_samples_and_without(tmp_path: Path) -> None:
    prompts = sums_of(resolve(MODEL, cache_folder()), MODEL, tmp_path / "prompts", evaluated=3, seed=1)
    cost = await SampleCost.open(tmp_path, prompts, 8, 1)
    for _ in range(2):
        await cost.measure([(5, 6, 7)] * 3 * GROUP, GROUP)
    await cost.close()
    keeping, plain = tmp_path / "samples-8", tmp_path / "plain-8"
    for folder in (SampleFolder(keeping), EvaluationSampleFolder(keeping, EVALUATION)):
        assert folder.rounds() == [1, 2]
        found = list(folder.read(2))
        assert len(found) == 8
        assert all(one.response and one.prompt and one.tokens == 3 and one.rewards for one in found)
    assert LengthFolder(keeping).rounds() == [1, 2]
    assert [path.name for path in plain.iterdir()] == ["state.db"], "nothing is kept"


async def test_the_job_that_is_first_changes_and_the_difference_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[bool] = []

    async def spent(job: sample_cost._Job, *_: object) -> Added:
        keeps = job.writer is not None
        order.append(keeps)
        return Added(0.5, 0.75) if keeps else Added(0.25, 0.25)

    monkeypatch.setattr(sample_cost._Job, "spent", spent)
    prompts = sums_of(resolve(MODEL, cache_folder()), MODEL, tmp_path / "prompts", evaluated=1, seed=1)
    cost = await SampleCost.open(tmp_path, prompts, "All", 1)
    assert [await cost.measure([], GROUP) for _ in range(2)] == [Added(0.25, 0.5)] * 2
    assert order == [True, False, False, True]
    await cost.close()


def test_figures_are_shares_of_the_generation_of_the_same_turn() -> None:
    turns = [Turn(9.0, 2.0, {}), Turn(9.0, 4.0, {}), Turn(9.0, 10.0, {})]
    measured = [(0, Added(0.02, 0.2)), (0, Added(9.0, 9.0)), (0, Added(0.01, 0.1)), (1, Added(0.02, 0.4))]
    figures = sample_figures({8: [*measured, (2, Added(0.01, 0.1))]}, turns)
    assert [(one["name"], one["value"], one["goal"], one["better"]) for one in figures] == [
        ("training_samples_8_cpu_share", pytest.approx(0.005), SAMPLES_GOAL, "lower"),
        ("evaluation_samples_8_cpu_share", pytest.approx(0.1), SAMPLES_GOAL, "lower"),
    ]
