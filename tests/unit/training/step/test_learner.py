"""Every kind of algorithm raises the reward of a bandit: a policy that samples for itself learns which tokens pay."""

from __future__ import annotations

import pytest
import torch

from rljob_api.spec.algorithm import AlgorithmKind, LossAggregation
from rljob_runtime.protocols.trajectory import FinishReason, Group, PromptKey, Response, ScoredResponse, TrajectoryKey
from rljob_runtime.training.batch.rows import Block, Sample, row_of
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.packing import pack_row
from rljob_runtime.training.step.learner import Learner
from tests.support.rows import slow
from tests.support.training.naive_gradient import of_kind
from tests.support.training.toys import VOCABULARY, make_learner

PROMPT, LENGTH, SAMPLES = (3, 1, 4), 2, 32
PAYS = set(range(0, VOCABULARY, 2))


def play(learner: Learner, generator: torch.Generator, step: int) -> Group:
    """Sample responses token by token from the policy itself; the reward is the share of paying tokens."""
    drawn: list[tuple[int, ...]] = [() for _ in range(SAMPLES)]
    for _ in range(LENGTH):
        # Ask for every token's logprob after what was drawn so far, one response at a time.
        for i, tokens in enumerate(drawn):
            block = Block((*PROMPT, *tokens), tuple(Sample((t,), (0.0,), 0.0) for t in range(VOCABULARY)))
            logprobs = learner.policy.frozen_logprobs(pack_row(row_of([block]), LossAggregation.TOKEN_MEAN))
            token = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
            drawn[i] = (*tokens, token)
    prompt = PromptKey(0, step)
    responses = []
    for i, tokens in enumerate(drawn):
        block = Block(PROMPT, (Sample(tokens, (0.0,) * LENGTH, 0.0),))
        logprobs = learner.policy.frozen_logprobs(pack_row(row_of([block]), LossAggregation.TOKEN_MEAN))
        response = Response(
            TrajectoryKey(prompt, i), 0, step, tokens, tuple(logprobs.tolist()), FinishReason.LENGTH, "itself"
        )
        responses.append(ScoredResponse(response, sum(token in PAYS for token in tokens) / LENGTH))
    return Group(prompt, PROMPT, tuple(responses))


QUICK = [AlgorithmKind.GRPO, AlgorithmKind.CISPO]
ROWS = [*QUICK, *slow(*(kind for kind in AlgorithmKind if kind not in QUICK))]


@pytest.mark.parametrize("kind", ROWS)
def test_the_reward_of_a_bandit_rises(model_folder, kind) -> None:
    settings = of_kind(kind, longest_response=LENGTH)
    config = TrainingConfig(dtype="float32", learning_rate=3e-2, temperature=1.5, **settings)
    learner = make_learner(model_folder, config)
    generator = torch.Generator().manual_seed(0)
    rewards, reports = [], []
    for step in range(1, 11):
        group = play(learner, generator, step)
        rewards.append(sum(scored.reward for scored in group.responses) / SAMPLES)
        reports.append(learner.train(step, [group]))
    assert rewards[0] < 0.75
    assert min(rewards[-2:]) > 0.9
    # The sampler and the trainer are one program here, so the mismatch is rounding, and nothing is clipped.
    assert max(abs(report.mismatch_kl) for report in reports) < 1e-9
    assert all(report.clip_fraction == 0 for report in reports)
    assert reports[0].tokens == SAMPLES * LENGTH
    assert reports[-1].entropy < reports[0].entropy
