"""Losses and advantages of the user: exact in any split, and refused with the reason when they are wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from rljob_runtime.protocols import FunctionFailed
from rljob_runtime.training.algorithm.advantage import ScoredGroup
from rljob_runtime.training.algorithm.own import OwnAdvantage
from rljob_runtime.training.batch.delivery import Progress, plan_train
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.step.contribution import combine, normalise
from tests.support.training.naive_gradient import contributions, largest_error, naive_gradient
from tests.support.training.own_functions import LONGEST
from tests.support.training.rank_groups import settings_of
from tests.support.training.toys import FakePublisher, LoneRank, make_groups, make_learner

OWN = "tests.support.training.own_functions"


@pytest.mark.usefixtures("norms_in_full_precision")
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_any_split_gives_the_gradient_and_the_metrics(model_folder: Path, parts: int) -> None:
    config = TrainingConfig(dtype="float64", max_tokens_per_microbatch=40, loss_function=f"{OWN}:counted")
    groups = make_groups(seed=1, count=6)
    wanted, _ = naive_gradient(model_folder, groups, config)
    total = combine(contributions(make_learner(model_folder, config), groups, parts))
    lengths = [len(scored.response.token_ids) for group in groups for scored in group.responses]
    means = total.sums.means()
    assert largest_error(dict(normalise(total, config.aggregation)), wanted) < 1e-12
    assert means.keys() == {"surprise", "long"}
    assert means["long"] == pytest.approx(sum(length > LONGEST for length in lengths) / len(lengths))
    whole = combine(contributions(make_learner(model_folder, config), groups, 1)).sums.means()
    assert means == pytest.approx(whole, rel=1e-12)


def test_its_metrics_are_in_the_report(model_folder: Path) -> None:
    config = TrainingConfig(dtype="float32", loss_function=f"{OWN}:counted")
    report = make_learner(model_folder, config).train(1, make_groups(seed=1, count=2))
    assert report.metrics.keys() == {"surprise", "long"}
    assert report.metrics["surprise"] > 0
    assert report.clip_fraction == 0


WRONG = {
    "raising": r"raised ZeroDivisionError: no token is long enough \(own_functions.py:\d+, in raising\)",
    "a_tensor": r"returned Tensor; LossOutput\(sum, metrics\) is right",
    "a_float": "returned a sum of type float; a scalar tensor is right",
    "a_value_per_token": r"returned a sum of shape \[\d+\]; a scalar tensor is right",
    "without_gradient": "returned a sum without a gradient; one that is computed from batch.logprobs is right",
    "nan": "returned a sum of nan; a finite number is right",
    "metric_per_token": "returned metric each as tensor",
    "infinite_metric": r"returned metric ratio as \(1.0, inf\); a number, or a pair",
    "metric_with_a_path": "returned a metric called '../escape'; letters, digits and _ are right",
    "many_metrics": "returned metrics .*; a mapping of at most 64 is right",
}


@pytest.mark.parametrize(("name", "message"), WRONG.items(), ids=WRONG.keys())
def test_a_wrong_loss_is_refused_and_no_weight_changes(model_folder, tmp_path, name, message) -> None:
    settings = settings_of(model_folder, tmp_path, dtype="float32", loss_function=f"{OWN}:{name}")
    rank = LoneRank(settings, FakePublisher)
    rank.start(1)
    before = {key: tensor.clone() for key, tensor in rank._started.optimizer.master.items()}
    with pytest.raises(FunctionFailed, match=rf"step 1 is not trained: algorithm.loss {OWN}:{name} {message}"):
        rank.train(1, 1, make_groups(seed=1, count=2))
    assert rank._started.position.step == 0
    assert all(torch.equal(before[key], tensor) for key, tensor in rank._started.optimizer.master.items())
    assert not rank._started.optimizer.adamw.state


def test_the_users_own_traceback_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    own = OwnAdvantage(f"{OWN}:missing_attribute")
    place = r"\(own_functions.py:\d+, in missing_attribute\)"
    for _ in range(2):
        with pytest.raises(FunctionFailed, match=rf"raised AttributeError: .* {place}"):
            own(ScoredGroup(rewards=(0.0, 1.0), lengths=(1, 1), truncated=(False, False)))
    told = capsys.readouterr().err
    assert told.count("Traceback (most recent call last):") == 1
    assert told.startswith(f"algorithm.advantage {OWN}:missing_attribute:\n")
    assert "own_functions.py" in told
    assert "algorithm/own.py" not in told


MISSING = {
    "no module": ("no_such_module:loss", "module 'no_such_module' cannot be imported: ModuleNotFoundError"),
    "no function": (f"{OWN}:nothing", f"module '{OWN}' has no function 'nothing'"),
    "no call": (f"{OWN}:LONGEST", "has no function 'LONGEST'"),
}


@pytest.mark.parametrize(("path", "message"), MISSING.values(), ids=MISSING.keys())
@pytest.mark.parametrize("field", ["loss", "advantage"])
def test_a_trainer_does_not_start_without_its_functions(model_folder, tmp_path, path, message, field) -> None:
    settings = settings_of(model_folder, tmp_path, dtype="float32", **{f"{field}_function": path})
    with pytest.raises(FunctionFailed, match=f"algorithm.{field} {path}.*{message}"):
        LoneRank(settings, FakePublisher).start(1)


def test_advantages_of_the_user_are_trained_on(model_folder: Path, tmp_path: Path) -> None:
    """The trainer computes them: a coordinator plans with what it is told."""
    groups = make_groups(seed=3, count=3)
    own = settings_of(model_folder, tmp_path / "own", dtype="float32", advantage_function=f"{OWN}:longer_is_better")
    rank = LoneRank(own, FakePublisher)
    rank.start(1)
    rank.contribute(1, 1, groups[:1])
    found = rank.train(1, 1, groups)
    assert found.early_groups == 1
    # The same advantages as rewards that are only centred.
    by_length = [
        dataclasses.replace(
            group,
            responses=tuple(
                dataclasses.replace(scored, reward=float(len(scored.response.token_ids))) for scored in group.responses
            ),
        )
        for group in groups
    ]
    plain = LoneRank(
        settings_of(model_folder, tmp_path / "plain", dtype="float32", advantages_by_std=False), FakePublisher
    )
    plain.start(1)
    wanted = plain.train(1, 1, by_length)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-5)
    assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-5)


def test_the_planner_runs_no_code_of_the_user() -> None:
    rules = TrainingConfig(advantage_function=f"{OWN}:raising").row_rules
    groups = make_groups(seed=3, count=1)
    given = {groups[0].prompt: [0.5, -1.0, 2.0, 0.0]}
    _, ((share,),) = plan_train(Progress(0, {}, rules, given), 1, groups, ranks=1)
    assert sorted(share.joined.advantages.tolist()) == [-1.0, 0.0, 0.5, 2.0]


GROUP = ScoredGroup((1.0, 0.0), (3, 4), (False, True))
WRONG_ADVANTAGES = {
    "too_few": r"returned \[1.0\]; one finite number for each of 2 responses is right",
    "no_number": r"returned \['high', 'high'\]; one finite number",
    "infinite": r"returned \[inf, inf\]; one finite number",
    "missing_attribute": r"raised AttributeError: .*values.* \(own_functions.py:\d+, in missing_attribute\)",
}


@pytest.mark.parametrize(("name", "message"), WRONG_ADVANTAGES.items(), ids=WRONG_ADVANTAGES.keys())
def test_wrong_advantages_are_refused(name: str, message: str) -> None:
    with pytest.raises(FunctionFailed, match=f"algorithm.advantage {OWN}:{name} {message}"):
        OwnAdvantage(f"{OWN}:{name}")(GROUP)


def test_a_wrong_advantage_names_the_step(model_folder: Path, tmp_path: Path) -> None:
    settings = settings_of(model_folder, tmp_path, dtype="float32", advantage_function=f"{OWN}:too_few")
    rank = LoneRank(settings, FakePublisher)
    rank.start(1)
    with pytest.raises(FunctionFailed, match=f"step 1 cannot be trained: algorithm.advantage {OWN}:too_few returned"):
        rank.train(1, 1, make_groups(seed=1, count=2))
