"""Groups that come before their step is trained: whatever came early, in whatever calls and order, the normalised
gradient (before clip and optimizer) and the weights are those of a step that is trained in one piece."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from torch import Tensor

from rljob_api.spec.algorithm import LossAggregation
from rljob_runtime.protocols import Refused, StaleTerm
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.training.batch.delivery import Progress, plan_train
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.step.contribution import Contribution, normalise
from rljob_runtime.training.step.learner import Learner
from tests.support.rows import slow
from tests.support.training.naive_gradient import TOLERANCE, largest_error, naive_gradient
from tests.support.training.rank_groups import settings_of, stored, trainer
from tests.support.training.toys import FakePublisher, LoneRank, changed, figures, make_groups, make_learner, watched

FIRST, *OTHERS = LossAggregation


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.optimizer.master.items()}


def in_calls(groups: list[Group], share: float, seed: int) -> list[list[Group]]:
    """A share of the groups, shuffled, in calls of unequal size."""
    rng = random.Random(seed)
    early = rng.sample(groups, round(share * len(groups)))
    calls = []
    while early:
        size = rng.randint(1, len(early))
        calls.append(early[:size])
        early = early[size:]
    return calls


@pytest.mark.usefixtures("norms_in_full_precision")
@pytest.mark.parametrize("dtype", ["float64", *slow("float32")])
@pytest.mark.parametrize("aggregation", list(LossAggregation), ids=str)
@pytest.mark.parametrize("share", [0.2, 0.7, 1.0])
def test_the_update_is_that_of_a_step_trained_in_one_call(model_folder: Path, dtype, aggregation, share) -> None:
    config = TrainingConfig(dtype=dtype, aggregation=aggregation, max_tokens_per_microbatch=40, learning_rate=1e-2)
    groups = make_groups(seed=5, count=6)
    wanted, _ = naive_gradient(model_folder, groups, config)
    plain, streamed = make_learner(model_folder, config), make_learner(model_folder, config)
    gradients = watched(streamed)
    for turn, call in enumerate(in_calls(groups, share, seed=3)):
        held, computed = streamed.contribute_early(1, call)
        assert (computed > 0, streamed.contribute_early(1, call[:1])) == (True, (held, 0)), turn
    shuffled = random.Random(1).sample(groups, len(groups))
    report, plain_report = streamed.train(1, shuffled), plain.train(1, groups)
    assert largest_error(gradients[0], wanted) <= TOLERANCE[dtype]
    assert largest_error(weights(streamed), weights(plain)) <= TOLERANCE[dtype] * 10
    assert report.early_groups == round(share * 6)
    expected = figures(plain_report) | {"seconds": report.seconds, "early_groups": report.early_groups}
    assert figures(report) == pytest.approx(expected, rel=TOLERANCE[dtype] * 10)


def test_what_came_early_is_not_computed_again(model_folder: Path, monkeypatch) -> None:
    learner = make_learner(model_folder, TrainingConfig(dtype="float64"))
    computed: list[int] = []
    contribute = Learner.contribute

    def count(self, step, groups, share, **settings):
        computed.extend(group.prompt.index for group in groups)
        return contribute(self, step, groups, share, **settings)

    monkeypatch.setattr(Learner, "contribute", count)
    groups = make_groups(seed=5, count=4)
    learner.contribute_early(1, groups[:2])
    learner.contribute_early(1, groups[1:3])
    learner.train(1, groups)
    assert computed == [0, 1, 2, 3]


@pytest.mark.usefixtures("norms_in_full_precision")
@pytest.mark.parametrize("aggregation", [FIRST, *slow(*OTHERS)], ids=str)
@pytest.mark.parametrize("case", ["not named", "other contents", "came again with other contents", "of an older step"])
def test_sums_that_do_not_fit_are_not_used(model_folder: Path, aggregation, case) -> None:
    config = TrainingConfig(dtype="float64", aggregation=aggregation)
    groups = make_groups(seed=6, count=4)
    learner = make_learner(model_folder, config)
    gradients = watched(learner)
    match case:
        case "not named":
            learner.contribute_early(1, groups)
            groups = groups[1:]
        case "other contents":
            learner.contribute_early(1, groups[:2])
            groups = [changed(groups[0]), *groups[1:]]
        case "came again with other contents":
            learner.contribute_early(1, groups[:2])
            groups = [changed(groups[0]), *groups[1:]]
            assert learner.contribute_early(1, groups[:1])[0] == 1
        case "of an older step":
            learner.contribute_early(0, groups[:2])
    report = learner.train(1, groups)
    wanted, _ = naive_gradient(model_folder, groups, config)
    assert largest_error(gradients[0], wanted) <= TOLERANCE["float64"]
    assert report.early_groups == (1 if case == "came again with other contents" else 0)


def test_early_sums_serve_one_step(model_folder: Path) -> None:
    """The same groups again in the next step are computed with its weights."""
    config = TrainingConfig(dtype="float64", learning_rate=1e-2)
    plain, streamed = make_learner(model_folder, config), make_learner(model_folder, config)
    groups = make_groups(seed=7, count=3)
    for step in (1, 2):
        streamed.contribute_early(step, groups[:2])
        assert streamed.train(step, groups).early_groups == 2
        plain.train(step, groups)
    assert largest_error(weights(streamed), weights(plain)) <= 1e-10


def test_rows_of_another_rank_alone_are_an_error_and_move_no_weight(model_folder: Path) -> None:
    learner = make_learner(model_folder, TrainingConfig(dtype="float64"))
    before = weights(learner)
    groups = make_groups(seed=7, count=3)
    delivery, (first, _) = plan_train(Progress(0, {}, learner.config.row_rules), 1, groups, ranks=2)
    with pytest.raises(ValueError, match=r"trainer has summed \d+ tokens of \d+ responses; its groups have \d+ of 12"):
        Learner.train(learner, 1, delivery, first)
    assert largest_error(weights(learner), before) == 0


def test_sums_of_which_the_sender_does_not_know_are_never_added(model_folder: Path) -> None:
    learner = make_learner(model_folder, TrainingConfig(dtype="float64"))
    groups = make_groups(seed=7, count=3)
    learner.contribute_early(1, groups[:1])
    delivery, (shares,) = plan_train(Progress(0, {}, learner.config.row_rules), 1, groups[1:], ranks=1)
    with pytest.raises(ValueError, match="groups that the step does not train on"):
        Learner.train(learner, 1, delivery, shares)
    assert learner.train(1, groups[1:]).early_groups == 0


def test_several_updates_a_step_take_nothing_early(model_folder: Path) -> None:
    learner = make_learner(model_folder, TrainingConfig(minibatches=2))
    with pytest.raises(ValueError, match="minibatches is 2"):
        learner.contribute_early(1, make_groups(1, 2))


# --- the rank's command ---


@pytest.fixture
def rank(model_folder: Path, tmp_path: Path) -> LoneRank:
    rank = LoneRank(settings_of(model_folder, tmp_path), FakePublisher)
    rank.start(1)
    return rank


def test_a_rank_takes_groups_of_the_next_step_only(rank: LoneRank) -> None:
    groups = make_groups(1, 3)
    report = rank.contribute(1, 1, groups[:2])
    tokens = sum(len(scored.response.token_ids) for group in groups[:2] for scored in group.responses)
    assert (report.groups, report.tokens) == (2, tokens)
    again = rank.contribute(1, 1, groups[:2])
    assert (again.groups, again.tokens) == (2, 0)
    with pytest.raises(Refused, match="step 0 is done, so 1 is next"):
        rank.contribute(1, 2, groups)
    assert rank.train(1, 1, groups).early_groups == 2
    # A repetition that comes late finds the step done.
    assert rank.contribute(1, 1, groups[:2]).groups == 0
    with pytest.raises(Refused, match="step 1 is done, so 2 is next"):
        rank.contribute(1, 0, groups)
    with pytest.raises(StaleTerm):
        rank.contribute(0, 2, groups)


def test_bad_groups_are_refused_and_what_came_stays(rank: LoneRank) -> None:
    groups = make_groups(1, 3)
    rank.contribute(1, 1, groups[:1])
    with pytest.raises(Refused, match=r"step 1 cannot accept early groups: no groups"):
        rank.contribute(1, 1, [])
    with pytest.raises(Refused, match="occurs twice"):
        rank.contribute(1, 1, [groups[1], groups[1]])
    assert rank.train(1, 1, groups).early_groups == 1


def test_early_sums_are_lost_with_the_trainer(model_folder: Path, tmp_path: Path, rank: LoneRank) -> None:
    groups = make_groups(1, 3)
    rank.contribute(1, 1, groups[:2])
    fresh = LoneRank(settings_of(model_folder, tmp_path), FakePublisher)
    fresh.start(2)
    report, whole = fresh.train(2, 1, groups), rank.train(1, 1, groups)
    assert (report.early_groups, whole.early_groups) == (0, 2)
    assert report.grad_norm == pytest.approx(whole.grad_norm, rel=1e-10)


@pytest.mark.engine
@pytest.mark.parametrize("aggregation", [LossAggregation.TOKEN_MEAN, *slow(LossAggregation.SEQUENCE_MEAN)], ids=str)
async def test_two_ranks_take_groups_early_as_one_trains_later(model_folder, tmp_path, aggregation) -> None:
    config = {"aggregation": aggregation, "max_tokens_per_microbatch": 60}
    one, two = (settings_of(model_folder, tmp_path / name, **config) for name in ("one", "two"))
    groups = make_groups(1, 5)
    async with trainer(one, 1) as alone:
        await alone.start(1)
        wanted = await alone.train(1, 1, groups)
        await alone.checkpoint(1, 1, "{}")
    async with trainer(two, 2) as together:
        await together.start(1)
        assert (await together.contribute(1, 1, groups[3:4])).groups == 1
        assert (await together.contribute(1, 1, groups[1:])).groups == 4
        found = await together.train(1, 1, groups)
        await together.checkpoint(1, 1, "{}")
    assert found.early_groups == 4
    assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-6)
    # The moments show a wrong scale, which AdamW hides in the weights.
    assert largest_error(stored(two, 1), stored(one, 1)) < 1e-5


@pytest.mark.usefixtures("norms_in_full_precision")
def test_a_halved_normaliser_is_seen(model_folder: Path, monkeypatch) -> None:
    config = TrainingConfig(dtype="float64")
    groups = make_groups(seed=5, count=4)
    wanted, _ = naive_gradient(model_folder, groups, config)
    learner = make_learner(model_folder, config)
    gradients = watched(learner)

    def half(total: Contribution, aggregation: LossAggregation) -> dict[str, Tensor]:
        return {name: 2 * gradient for name, gradient in normalise(total, aggregation).items()}

    monkeypatch.setattr("rljob_runtime.training.step.learner.normalise", half)
    learner.contribute_early(1, groups[:2])
    learner.train(1, groups)
    assert largest_error(gradients[0], wanted) > 0.9
