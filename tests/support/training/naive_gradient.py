"""The gradient of a step, computed naively."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.training.config import Aggregation, TrainingConfig
from rljob_runtime.training.step.contribution import Contribution
from tests.support.training.toys import LoneLearner

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


def naive_gradient(
    folder: Path, groups: list[Group], config: TrainingConfig, *, began: Path | None = None
) -> tuple[dict[str, Tensor], float]:
    """GRPO as the papers write it: one sequence a forward pass, full logits, stock attention, one mean. `began`: the
    model at the start of the step, where it is another one by now."""
    dtype = getattr(torch, config.dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    start = AutoModelForCausalLM.from_pretrained(began or folder, dtype=dtype, attn_implementation="sdpa")

    def logprobs_of(of, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> Tensor:
        logits = of(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0] / config.temperature
        every = torch.log_softmax(logits, dim=-1)
        return torch.stack([every[len(prompt) - 1 + i, token] for i, token in enumerate(tokens)])

    per_sequence = []
    for group in groups:
        rewards = torch.tensor([scored.reward for scored in group.responses], dtype=dtype)
        advantages = rewards - rewards.mean()
        if config.advantages_by_std:
            advantages = advantages / (rewards.std(correction=0) + 1e-6)
        for scored, advantage in zip(group.responses, advantages, strict=True):
            tokens = scored.response.token_ids
            new = logprobs_of(model, group.prompt_token_ids, tokens)
            with torch.no_grad():
                frozen = logprobs_of(start, group.prompt_token_ids, tokens)
            behaviour = torch.tensor(scored.response.logprobs, dtype=dtype)
            weight, anchor = torch.ones_like(behaviour), behaviour
            if config.importance_cap is not None:
                weight, anchor = (frozen - behaviour).exp().clamp(max=config.importance_cap), frozen
            ratio = (new - anchor).exp()
            held = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
            kl = (frozen - new).exp() - 1 - (frozen - new)
            gain = weight * torch.minimum(ratio * advantage, held * advantage)
            per_sequence.append(config.kl_coefficient * kl - gain)
    if config.aggregation is Aggregation.TOKEN_MEAN:
        loss = torch.cat(per_sequence).mean()
    else:
        loss = torch.stack([losses.mean() for losses in per_sequence]).mean()
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, loss.item()


def largest_error(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert found.keys() == wanted.keys()
    return max(float((found[n] - wanted[n]).abs().max() / wanted[n].abs().max()) for n in wanted)


def contributions(learner: LoneLearner, groups: list[Group], parts: int, seed: int = 0) -> list[Contribution]:
    """Contributions of a random split of the groups, in a random order."""
    rng = random.Random(seed)
    groups = rng.sample(groups, len(groups))
    cuts = sorted(rng.sample(range(1, len(groups)), parts - 1))
    return [learner.sums_of(1, groups[a:b]) for a, b in zip([0, *cuts], [*cuts, len(groups)], strict=True)]


CASES = {
    "token mean": {},
    "sequence mean": {"aggregation": Aggregation.SEQUENCE_MEAN},
    "hot, with KL": {"temperature": 1.7, "kl_coefficient": 0.05},
    "no std, tight clip": {"advantages_by_std": False, "clip_low": 0.01, "clip_high": 0.02},
    "weighed": {"importance_cap": 2.0, "aggregation": Aggregation.SEQUENCE_MEAN, "kl_coefficient": 0.05},
}
