"""The gradient of a step, computed naively."""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rljob_api.spec.algorithm import (
    AdvantageBaseline,
    AlgorithmKind,
    Clipping,
    ImportanceRatio,
    LossAggregation,
)
from rljob_runtime.protocols.trajectory import FinishReason, Group, Response, Span
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.presets import PRESETS
from rljob_runtime.training.step.contribution import Contribution
from tests.support.training.toys import LoneLearner

Piece = tuple[tuple[int, ...], tuple[int, ...]]
"""Tokens, and those that were sampled after them."""
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


def naive_gradient(
    folder: Path, groups: list[Group], config: TrainingConfig, *, began: Path | None = None
) -> tuple[dict[str, Tensor], float]:
    """The algorithms as the papers write them: one sequence a forward pass, full logits, stock attention, one mean.

    `began`: the model at the start of the step, where it is another one by now."""
    dtype = getattr(torch, config.dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    start = AutoModelForCausalLM.from_pretrained(began or folder, dtype=dtype, attn_implementation="sdpa")

    def distributions(of: Callable[..., Any], pieces: list[Piece]) -> Tensor:
        found = []
        for before, tokens in pieces:
            logits = of(input_ids=torch.tensor([[*before, *tokens]])).logits[0] / config.temperature
            found.append(torch.log_softmax(logits, dim=-1)[len(before) - 1 : -1])
        return torch.cat(found)

    per_sequence = []
    for group in groups:
        for scored, advantage in zip(group.responses, advantages_by_hand(group, config), strict=True):
            response = scored.response
            if config.mask_overlong and response.finish_reason is FinishReason.LENGTH:
                continue
            tokens, pieces = response.token_ids, pieces_of(group.prompt_token_ids, response)
            every = distributions(model, pieces)
            places = range(len(tokens)), list(tokens)
            new = every[places]
            with torch.no_grad():
                frozen = distributions(start, pieces)[places]
            behaviour = torch.tensor(response.logprobs, dtype=dtype)
            losses = _losses(new, frozen, behaviour, advantage, config)
            entropy = -(every.exp() * every).sum(-1)
            per_sequence.append(losses - config.entropy_coefficient * entropy)
    loss = {
        LossAggregation.TOKEN_MEAN: lambda: torch.cat(per_sequence).mean(),
        LossAggregation.SEQUENCE_MEAN: lambda: torch.stack([losses.mean() for losses in per_sequence]).mean(),
        LossAggregation.SEQUENCE_SUM: lambda: torch.stack([losses.sum() for losses in per_sequence]).mean(),
        LossAggregation.FIXED_LENGTH: lambda: torch.stack(
            [losses.sum() / config.longest_response for losses in per_sequence]
        ).mean(),
    }[config.aggregation]()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: one for name, one in gradients.items() if one is not None}, loss.item()


def pieces_of(prompt: Sequence[int], response: Response) -> list[Piece]:
    """The sampled spans of a response, each with everything before it in its sequence."""
    found, left = [], list(response.token_ids)
    for sequence in response.sequences or ((Span((), len(left)),),):
        before = list(prompt)
        for span in sequence:
            before += span.given
            tokens, left = left[: span.sampled], left[span.sampled :]
            found.append((tuple(before), tuple(tokens)))
            before += tokens
    assert not left
    return found


def advantages_by_hand(group: Group, config: TrainingConfig) -> list[float]:
    """Of each response of a group."""
    rewards = []
    for scored in group.responses:
        length, window = len(scored.response.token_ids), config.overlong_penalty_tokens
        safe = config.longest_response - (window or 0)
        penalty = 0.0
        if window and length > safe:
            penalty = (safe - length) / window if length <= config.longest_response else -1.0
        rewards.append(scored.reward + penalty)
    found = []
    for i, reward in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        baseline = others if config.advantage_baseline is AdvantageBaseline.LEAVE_ONE_OUT else rewards
        advantage = reward - statistics.fmean(baseline)
        found.append(advantage / (statistics.pstdev(rewards) + 1e-6) if config.advantages_by_std else advantage)
    return found


def _losses(new: Tensor, frozen: Tensor, behaviour: Tensor, advantage: float, config: TrainingConfig) -> Tensor:
    """Of each token of one response."""
    weight, anchor = torch.ones_like(behaviour), behaviour
    if config.importance_cap is not None:
        weight, anchor = (frozen - behaviour).exp().clamp(max=config.importance_cap), frozen
    ratio = (new - anchor).exp()
    if config.importance_ratio is ImportanceRatio.SEQUENCE:
        ratio = torch.prod(ratio).pow(1 / len(ratio)).expand(len(ratio))
    kl = (frozen - new).exp() - 1 - (frozen - new)
    held = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    if config.clipping is Clipping.WEIGHT:
        gain = held.detach() * advantage * new
    else:
        gain = torch.minimum(ratio * advantage, held * advantage)
    return config.kl_coefficient * kl - weight * gain


def largest_error(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert found.keys() == wanted.keys()
    return max(float((found[n] - wanted[n]).abs().max() / wanted[n].abs().max()) for n in wanted)


def contributions(learner: LoneLearner, groups: list[Group], parts: int, seed: int = 0) -> list[Contribution]:
    """Contributions of a random split of the groups, in a random order."""
    rng = random.Random(seed)
    groups = rng.sample(groups, len(groups))
    cuts = sorted(rng.sample(range(1, len(groups)), parts - 1))
    return [learner.sums_of(1, groups[a:b]) for a, b in zip([0, *cuts], [*cuts, len(groups)], strict=True)]


def of_kind(kind: AlgorithmKind, **changes: Any) -> dict[str, Any]:
    """The settings of a trainer with this preset."""
    parts = dataclasses.asdict(PRESETS[kind])
    settings = {
        "advantage_baseline": parts.pop("advantage_baseline"),
        "advantages_by_std": parts.pop("normalize_advantages_by_std"),
        "aggregation": parts.pop("loss_aggregation"),
        **parts,
    }
    return settings | {"longest_response": 9} | changes


CASES = {
    "token mean": {},
    "sequence mean": {"aggregation": LossAggregation.SEQUENCE_MEAN},
    "hot, with KL": {"temperature": 1.7, "kl_coefficient": 0.05},
    "no std, tight clip": {"advantages_by_std": False, "clip_low": 0.01, "clip_high": 0.02},
    "weighed": {"importance_cap": 2.0, "aggregation": LossAggregation.SEQUENCE_MEAN, "kl_coefficient": 0.05},
    **{kind.value: of_kind(kind) for kind in AlgorithmKind},
    "GSPO, wide clip": of_kind(AlgorithmKind.GSPO, clip_low=0.3, clip_high=0.4),
    "CISPO, weighed": of_kind(AlgorithmKind.CISPO, importance_cap=2.0, clip_high=0.1),
    "an entropy bonus, hot": {"entropy_coefficient": 0.3, "temperature": 1.7},
    "overlong": {"longest_response": 9, "mask_overlong": True, "overlong_penalty_tokens": 4},
}
