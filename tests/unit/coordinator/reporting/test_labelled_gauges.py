"""Gauges with labels have the newest values only: what a round lacks is a gap and no value of an earlier round."""

from __future__ import annotations

from math import isnan
from typing import Any

from rljob_api.status import EpisodesReport, RoundReport
from rljob_runtime.coordinator.reporting.metrics import CoordinatorMetrics
from rljob_runtime.protocols import TrainReport

TRAINED = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0)
METRICS = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0, metrics={"gate": 1.0})


def report(number: int, name: str, **more: Any) -> RoundReport:
    """A round with one environment, source and rule of this name."""
    episodes = EpisodesReport(
        turns_mean=1.0,
        model_seconds=1.0,
        truncated_by_turns=0.5,
        environments=[{"name": name, "most_open": 40, "wait_seconds": 90.0}],  # type: ignore[arg-type]
    )
    wire = {
        "rewardRules": [{"name": name, "mean": 0.5, "deviation": 0.25}],
        "sources": [{"name": name, "prompts": 3, "reward": 0.5}],
        "responseTokensP50": 17,
        "meanResponseTokens": 5.0,
        "episodes": episodes.to_dict(),
    }
    return RoundReport.model_validate({"round": number, **wire, **more})


def labelled(metrics: CoordinatorMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """The values of all gauges with labels."""
    return {
        (sample.name.removeprefix("rljob_coordinator_"), tuple(sample.labels.values())): sample.value
        for family in metrics.registry.collect()
        if family.type == "gauge"
        for sample in family.samples
        if sample.labels
    }


def test_what_a_round_lacks_is_a_gap_in_each_gauge_with_labels() -> None:
    metrics = CoordinatorMetrics()
    metrics.round(report(1, "first"), METRICS)
    before = labelled(metrics)
    assert before["open_episodes", ("first",)] == 40.0
    assert before["loss_metric", ("gate",)] == 1.0
    metrics.round(RoundReport(round=2, episodes=EpisodesReport()), TRAINED)
    after = labelled(metrics)
    assert after.keys() >= before.keys()
    assert {one: value for one, value in after.items() if not isnan(value)} == {}


def test_names_of_a_round_do_not_keep_those_of_the_one_before() -> None:
    metrics = CoordinatorMetrics()
    for number, name in enumerate(("first", "second"), 1):
        metrics.round(report(number, name), TRAINED)
    found = labelled(metrics)
    named = {one for one, value in found.items() if one[1][0] in ("first", "second") and not isnan(value)}
    assert {labels[0] for _, labels in named} == {"second"}
    assert {name for name, _ in named} == {"open_episodes", "runner_wait_seconds", "rule_reward", "source_reward"}
