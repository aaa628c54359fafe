"""The gradient of a step is a sum: any worker may compute any part, in any order.

One division at the end gives the gradient of a straightforward implementation that takes one sequence at a time.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rljob_api.spec.algorithm import LossAggregation
from rljob_runtime.protocols.trajectory import FinishReason, ScoredResponse
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.step.contribution import combine, normalise
from tests.support.rows import slow
from tests.support.training.naive_gradient import CASES, TOLERANCE, contributions, largest_error, naive_gradient
from tests.support.training.toys import make_groups, make_learner

pytestmark = pytest.mark.usefixtures("norms_in_full_precision")


@pytest.mark.parametrize("dtype", ["float64", *slow("float32")])
@pytest.mark.parametrize("settings", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("parts", [3, *slow(1, 5)])
def test_any_split_gives_the_gradient_of_the_naive_implementation(model_folder, dtype, settings, parts) -> None:
    config = TrainingConfig(dtype=dtype, max_tokens_per_microbatch=40, **settings)
    groups = make_groups(seed=1, count=6)
    wanted, loss = naive_gradient(model_folder, groups, config)
    learner = make_learner(model_folder, config)
    total = combine(contributions(learner, groups, parts))
    found = normalise(total, config.aggregation)
    assert largest_error(dict(found), wanted) <= TOLERANCE[dtype]
    assert total.sums.loss / total.sums.normaliser(config.aggregation) == pytest.approx(loss, rel=TOLERANCE[dtype] * 10)


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES.keys())
def test_any_split_gives_the_same_metrics(model_folder, settings) -> None:
    config = TrainingConfig(dtype="float64", max_tokens_per_microbatch=40, **settings)
    groups = make_groups(seed=8, count=6)
    learner = make_learner(model_folder, config)
    found = [combine(contributions(learner, groups, parts)).sums for parts in (1, 2, 4)]
    for sums in found:
        assert sums.means() == pytest.approx(found[0].means(), rel=1e-10, abs=1e-12)
        plain = sums.to_dict() | {"metrics": 0.0}
        assert plain == pytest.approx(found[0].to_dict() | {"metrics": 0.0}, rel=1e-9, abs=1e-9)
    assert found[0].means().keys() == {"clip_fraction_low", "clip_fraction_high"}


def test_a_step_of_masked_responses_only_changes_nothing(model_folder) -> None:
    config = TrainingConfig(dtype="float32", learning_rate=1e-2, mask_overlong=True, longest_response=9)
    learner = make_learner(model_folder, config)
    learner.train(1, make_groups(seed=3, count=2, max_length=12))
    before = {name: tensor.clone() for name, tensor in learner.optimizer.master.items()}
    cut = [
        replace(group, responses=tuple(_cut(scored) for scored in group.responses))
        for group in make_groups(seed=4, count=2)
    ]
    assert learner.contribute_early(2, cut[:1]) == (1, 0)
    report = learner.train(2, cut)
    assert (report.tokens, report.loss, report.grad_norm, report.early_groups) == (0, 0.0, 0.0, 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.optimizer.master.items())
    assert learner.train(3, make_groups(seed=5, count=2, max_length=12)).grad_norm > 0


def _cut(scored: ScoredResponse) -> ScoredResponse:
    return replace(scored, response=replace(scored.response, finish_reason=FinishReason.LENGTH))


def test_a_halved_normaliser_is_seen(model_folder) -> None:
    config = TrainingConfig(dtype="float64")
    groups = make_groups(seed=2, count=4)
    wanted, _ = naive_gradient(model_folder, groups, config)
    total = combine(contributions(make_learner(model_folder, config), groups, 2))
    halved = {name: 2 * gradient for name, gradient in normalise(total, config.aggregation).items()}
    assert largest_error(halved, wanted) > 0.9


def test_normalising_by_the_other_count_is_seen(model_folder) -> None:
    config = TrainingConfig(dtype="float64")
    groups = make_groups(seed=2, count=4)
    wanted, _ = naive_gradient(model_folder, groups, config)
    total = combine(contributions(make_learner(model_folder, config), groups, 2))
    found = normalise(total, LossAggregation.SEQUENCE_MEAN)
    assert largest_error(dict(found), wanted) > 0.9


@pytest.mark.parametrize("budget", [1, 17, 40, 10_000])
def test_the_token_budget_changes_no_result(model_folder, budget) -> None:
    groups = make_groups(seed=3, count=5)
    wanted, _ = naive_gradient(model_folder, groups, TrainingConfig(dtype="float64"))
    config = TrainingConfig(dtype="float64", max_tokens_per_microbatch=budget)
    total = combine(contributions(make_learner(model_folder, config), groups, 1))
    assert largest_error(dict(normalise(total, config.aggregation)), wanted) <= TOLERANCE["float64"]
