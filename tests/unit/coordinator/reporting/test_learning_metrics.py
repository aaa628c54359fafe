"""What tells whether a job learns is in every place where people look: file, TensorBoard, Prometheus and status."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_api.status import RoundReport
from rljob_api.status.round_report import RuleReward
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.coordinator.reporting.round_log import RoundLog, TensorBoard
from rljob_runtime.protocols import TrainReport

REPORT = RoundReport(
    round=4,
    reward=0.11,
    reward_rules=(RuleReward(name="right", mean=0.12, deviation=0.13),),
    group_reward_deviation=0.14,
    equal_reward_groups=0.15,
    truncated_responses=0.16,
    response_tokens_p50=17,
    response_tokens_p90=18,
    response_tokens_p99=19,
    max_response_tokens=20,
    idle_tail=0.21,
    idle_environments=0.26,
    idle_rewards=0.22,
    idle_training=0.23,
    idle_weights=0.24,
)
TRAINED = TrainReport(
    step=4,
    loss=0.31,
    grad_norm=0.32,
    learning_rate=0.33,
    mismatch_kl=0.34,
    clip_fraction=0.35,
    entropy=0.36,
    tokens=37,
    seconds=0.38,
    capped_fraction=0.39,
    reference_kl=0.41,
    metrics={"clip_fraction_low": 0.42, "clip_fraction_high": 0.43},
)


@dataclass(frozen=True)
class Metric:
    """A metric: its value, its path in a line of `rounds.jsonl`, its curve, and its sample in a scrape."""

    value: float
    path: tuple[str | int, ...]
    curve: str
    sample: str
    labels: tuple[tuple[str, str], ...] = ()


def of_report(field: str, name: str) -> Metric:
    return Metric(getattr(REPORT, field), (name,), f"round/{field}", field)


def of_training(field: str) -> Metric:
    return Metric(getattr(TRAINED, field), ("training", field), f"train/{field}", field)


def of_loss(name: str) -> Metric:
    path = ("training", "metrics", name)
    return Metric(TRAINED.metrics[name], path, f"train/{name}", "loss_metric", (("name", name),))


def of_length(field: str, name: str, quantile: str) -> Metric:
    path, labels = (name,), (("quantile", quantile),)
    return Metric(getattr(REPORT, field), path, f"round/{field}", "response_tokens", labels)


METRICS = {
    "reward": of_report("reward", "reward"),
    "reward by rule, mean": Metric(
        0.12, ("rewardRules", 0, "mean"), "reward/right", "rule_reward", (("rule", "right"), ("of", "mean"))
    ),
    "reward by rule, deviation": Metric(
        0.13,
        ("rewardRules", 0, "deviation"),
        "reward/right_deviation",
        "rule_reward",
        (("rule", "right"), ("of", "deviation")),
    ),
    "deviation inside groups": of_report("group_reward_deviation", "groupRewardDeviation"),
    "groups with equal rewards": of_report("equal_reward_groups", "equalRewardGroups"),
    "cut at the limit": of_report("truncated_responses", "truncatedResponses"),
    "entropy": of_training("entropy"),
    "KL to the reference": of_training("reference_kl"),
    "KL of sampler and trainer": of_training("mismatch_kl"),
    "clipped low": of_loss("clip_fraction_low"),
    "clipped high": of_loss("clip_fraction_high"),
    "importance capped": of_training("capped_fraction"),
    "length p50": of_length("response_tokens_p50", "responseTokensP50", "0.5"),
    "length p90": of_length("response_tokens_p90", "responseTokensP90", "0.9"),
    "length p99": of_length("response_tokens_p99", "responseTokensP99", "0.99"),
    "longest": of_length("max_response_tokens", "maxResponseTokens", "1"),
    "idle for the tail": of_report("idle_tail", "idleTail"),
    "idle for environments": of_report("idle_environments", "idleEnvironments"),
    "idle for rewards": of_report("idle_rewards", "idleRewards"),
    "idle for training": of_report("idle_training", "idleTraining"),
    "idle for weights": of_report("idle_weights", "idleWeights"),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, EventAccumulator, CoordinatorMetrics]:
    """A line of the round log, the curves, and what a scrape reads."""
    folder: Path = tmp_path_factory.mktemp("job")
    board, metrics = TensorBoard(folder / "board"), CoordinatorMetrics()
    for observer in (RoundLog(folder), board, metrics.round):
        observer(REPORT, TRAINED)
    board.close()
    line = json.loads((folder / "rounds.jsonl").read_text())
    return line, EventAccumulator(str(folder / "board")).Reload(), metrics


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_a_metric_is_in_the_file_in_tensorboard_and_in_prometheus(written, metric: Metric) -> None:
    found, curves, metrics = written
    for step in metric.path:
        found = found[step]
    assert found == metric.value
    (point,) = curves.Tensors(metric.curve)
    assert point.step == REPORT.round
    assert point.tensor_proto.float_val[0] == pytest.approx(metric.value)
    name = f"rljob_coordinator_{metric.sample}"
    assert metrics.registry.get_sample_value(name, dict(metric.labels)) == metric.value


def test_the_values_differ_so_that_none_is_taken_for_another() -> None:
    assert len({metric.value for metric in METRICS.values()}) == len(METRICS)
