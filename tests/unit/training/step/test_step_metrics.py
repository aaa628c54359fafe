"""The metrics of a step equal a second computation: stock model, one response a forward pass, plain means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.training.config import TrainingConfig
from tests.support.training.toys import make_groups, make_learner, save_tiny_model

CONFIG = TrainingConfig(
    dtype="float64", temperature=1.3, clip_low=0.1, clip_high=0.3, kl_coefficient=0.05, max_tokens_per_microbatch=40
)

pytestmark = pytest.mark.usefixtures("norms_in_full_precision")


def distributions(folder: Path, groups: list[Group]) -> list[Tensor]:
    """Log-probabilities of every token at each place of each response."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    found = []
    for group in groups:
        for scored in group.responses:
            asked = torch.tensor([[*group.prompt_token_ids, *scored.response.token_ids]])
            with torch.no_grad():
                logits = model(input_ids=asked).logits[0] / CONFIG.temperature
            found.append(torch.log_softmax(logits, dim=-1)[len(group.prompt_token_ids) - 1 : -1])
    return found


def chosen(every: list[Tensor], groups: list[Group]) -> Tensor:
    """Log-probabilities of the sampled tokens."""
    sampled = [scored.response.token_ids for group in groups for scored in group.responses]
    return torch.cat([one[range(len(ids)), list(ids)] for one, ids in zip(every, sampled, strict=True)])


def near_the_policy(groups: list[Group], logprobs: Tensor) -> list[Group]:
    """The groups with a sampler whose log-probabilities lie by up to 0.4 beside these."""
    apart = torch.linspace(-0.4, 0.4, len(logprobs), dtype=torch.float64)
    left = iter((logprobs + apart[torch.randperm(len(apart), generator=torch.Generator().manual_seed(3))]).tolist())
    return [
        replace(
            group,
            responses=tuple(
                replace(
                    scored,
                    response=replace(scored.response, logprobs=tuple(next(left) for _ in scored.response.logprobs)),
                )
                for scored in group.responses
            ),
        )
        for group in groups
    ]


def test_entropy_kls_and_clip_fractions_are_of_the_sampled_tokens(model_folder, tmp_path) -> None:
    initial = save_tiny_model(tmp_path / "initial", seed=5)
    drawn = make_groups(seed=6, count=5)
    every = distributions(model_folder, drawn)
    now = chosen(every, drawn)
    groups = near_the_policy(drawn, now)
    report = make_learner(model_folder, CONFIG, reference=initial).train(1, groups)

    responses = [scored.response for group in groups for scored in group.responses]
    behaviour = torch.tensor([value for one in responses for value in one.logprobs], dtype=torch.float64)
    advantages = torch.tensor([value for group in groups for value in advantages_of(group)], dtype=torch.float64)
    ratio = (now - behaviour).exp()
    reference = chosen(distributions(initial, groups), groups) - now
    assert report.tokens == len(now)
    assert report.entropy == near(fmean(float(-(one.exp() * one).sum()) for place in every for one in place))
    assert report.mismatch_kl == near(float((ratio - 1 - ratio.log()).mean()))
    assert report.reference_kl == near(float((reference.exp() - 1 - reference).mean()))
    low = float(((ratio < 1 - CONFIG.clip_low) & (advantages < 0)).double().mean())
    high = float(((ratio > 1 + CONFIG.clip_high) & (advantages > 0)).double().mean())
    assert 0 < low < 1
    assert 0 < high < 1
    assert report.metrics == {"clip_fraction_low": near(low), "clip_fraction_high": near(high)}
    assert report.clip_fraction == near(low + high)


def test_a_job_without_a_reference_model_reports_no_kl_to_it(model_folder) -> None:
    config = replace(CONFIG, kl_coefficient=0.0)
    report = make_learner(model_folder, config).train(1, make_groups(seed=6, count=2))
    assert report.reference_kl is None
    assert report.entropy > 0


def advantages_of(group: Group) -> list[float]:
    """One for each token."""
    rewards = [scored.reward for scored in group.responses]
    normal = [(reward - fmean(rewards)) / (pstdev(rewards) + 1e-6) for reward in rewards]
    lengths = [len(scored.response.token_ids) for scored in group.responses]
    return [value for value, length in zip(normal, lengths, strict=True) for _ in range(length)]


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-9)
