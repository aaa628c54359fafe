"""Learning rate schedules: pure, bounded, and the same for a trainer that resumes."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.algorithm import ScheduleKind
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.optimizer import learning_rate
from tests.support.training.rank_groups import settings_of
from tests.support.training.toys import FakePublisher, LoneRank, figures, make_groups


def rates(*steps: int, **settings: object) -> list[float]:
    config = TrainingConfig(**{"learning_rate": 1.0, **settings})
    return [learning_rate(config, step) for step in steps]


TABLE = {
    "constant": ({}, {1: 1.0, 5: 1.0, 1000: 1.0}),
    "warm-up": ({"warmup_steps": 4}, {1: 0.25, 2: 0.5, 4: 1.0, 9: 1.0}),
    "linear": ({"schedule": ScheduleKind.LINEAR, "decay_steps": 11}, {1: 1.0, 6: 0.5, 11: 0.0, 40: 0.0}),
    "linear to a share": (
        {"schedule": ScheduleKind.LINEAR, "decay_steps": 11, "final_factor": 0.5},
        {1: 1.0, 6: 0.75, 11: 0.5, 40: 0.5},
    ),
    "cosine": (
        {"schedule": ScheduleKind.COSINE, "decay_steps": 13},
        {1: 1.0, 5: 0.75, 7: 0.5, 9: 0.25, 13: 0.0, 40: 0.0},
    ),
    "cosine after warm-up": (
        {"schedule": ScheduleKind.COSINE, "decay_steps": 14, "warmup_steps": 4, "final_factor": 0.1},
        {1: 0.25, 4: 1.0, 9: 0.55, 14: 0.1, 15: 0.1},
    ),
}


@pytest.mark.parametrize(("settings", "wanted"), TABLE.values(), ids=TABLE.keys())
def test_the_rate_of_a_step(settings: dict[str, object], wanted: dict[int, float]) -> None:
    assert rates(*wanted, **settings) == pytest.approx(list(wanted.values()), abs=1e-12)


@given(
    kind=st.sampled_from([ScheduleKind.LINEAR, ScheduleKind.COSINE]),
    warmup=st.integers(0, 20),
    decay=st.integers(1, 50),
    final=st.floats(0, 1),
)
def test_it_rises_to_the_rate_and_then_falls_to_its_share(kind, warmup, decay, final) -> None:
    found = rates(*range(1, 100), schedule=kind, warmup_steps=warmup, decay_steps=warmup + decay, final_factor=final)
    top = max(1, warmup) - 1
    assert found[top] == 1.0
    assert all(before < after for before, after in pairwise(found[: top + 1]))
    assert all(before >= after - 1e-12 for before, after in pairwise(found[top:]))
    assert all(rate == pytest.approx(final) for rate in found[warmup + decay - 1 :][1:])
    assert min(found[top:]) >= final - 1e-12


def test_a_decay_that_ends_in_warm_up_is_refused() -> None:
    with pytest.raises(ValueError, match="decay_steps is 3; it must be above warmup_steps, 3"):
        TrainingConfig(schedule=ScheduleKind.COSINE, decay_steps=3, warmup_steps=3)


def test_a_resumed_trainer_has_the_rates_and_weights_of_an_unbroken_one(model_folder: Path, tmp_path: Path) -> None:
    settings = settings_of(
        model_folder, tmp_path, dtype="float32", learning_rate=1e-2, warmup_steps=1, schedule=ScheduleKind.COSINE,
        decay_steps=5, final_factor=0.1, adam_epsilon=1e-6, betas=(0.8, 0.9), weight_decay=0.1, max_grad_norm=0.5,
    )  # fmt: skip
    unbroken = LoneRank(settings, FakePublisher)
    unbroken.start(1)
    for step in (1, 2):
        unbroken.train(1, step, make_groups(step, 2))
    unbroken.checkpoint(1, 2, "{}")
    wanted = [unbroken.train(1, step, make_groups(step, 2)) for step in (3, 4)]
    resumed = LoneRank(settings, FakePublisher)
    assert resumed.start(1).step == 2
    found = [resumed.train(1, step, make_groups(step, 2)) for step in (3, 4)]
    for mine, theirs in zip(found, wanted, strict=True):
        assert figures(mine) == {**figures(theirs), "seconds": mine.seconds}
    assert [report.learning_rate for report in found] == pytest.approx(
        [1e-2 * (0.1 + 0.9 * (1 + math.cos(math.pi * (step - 1) / 4)) / 2) for step in (3, 4)]
    )
    first, second = unbroken._started.optimizer.master, resumed._started.optimizer.master
    assert all(torch.equal(first[name], second[name]) for name in first)


ADAMW = {
    "betas": {"betas": (0.5, 0.6)},
    "epsilon": {"adam_epsilon": 0.1},
    "weight decay": {"weight_decay": 0.5},
    "clip": {"max_grad_norm": 1e-4, "adam_epsilon": 1e-3},
}


@pytest.mark.parametrize("changes", ADAMW.values(), ids=ADAMW.keys())
def test_adamw_has_the_settings_of_the_job(model_folder: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    """Against torch's own AdamW, given the gradients that the optimizer was given."""
    plain = {"dtype": "float32", "learning_rate": 1e-2}
    rank = LoneRank(settings_of(model_folder, tmp_path, **plain, **changes), FakePublisher)
    rank.start(1)
    optimizer = rank._started.optimizer
    own = {name: tensor.detach().clone().requires_grad_() for name, tensor in optimizer.master.items()}
    config = TrainingConfig(**plain, **changes)
    groups = [
        {"params": [tensor for tensor in own.values() if tensor.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [tensor for tensor in own.values() if tensor.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=1e-2, betas=config.betas, eps=config.adam_epsilon)
    for step in (1, 2):
        gradients = {name: torch.randn_like(tensor) * 1e-2 for name, tensor in own.items()}
        for name, tensor in own.items():
            tensor.grad = gradients[name].clone()
        torch.nn.utils.clip_grad_norm_(own.values(), config.max_grad_norm or math.inf)
        adamw.step()
        optimizer.update(gradients, step)
    for name, tensor in own.items():
        torch.testing.assert_close(optimizer.master[name], tensor, rtol=1e-4, atol=1e-7)
    assert dataclasses.replace(config, **{name: getattr(TrainingConfig(), name) for name in changes}) != config
