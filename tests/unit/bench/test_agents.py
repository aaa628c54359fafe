"""The agents' benchmark: a small run through the real gateway and runners has every figure, and loses no token."""

from __future__ import annotations

import json

import pytest

from rljob_bench import agents as agents_bench
from rljob_bench.agents import Measured, Plan, agents, figures, percentile


def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(episodes=4, blocks=2, concurrent=2, turn_seconds=0.01, runners=1, places=4)
    monkeypatch.setattr(agents_bench, "QUICK", plan)
    result = json.loads(json.dumps(agents(quick=True, seed=1)))
    values = {figure["name"]: figure["value"] for figure in result["figures"]}
    assert values["failed_episodes"] == values["differing_responses"] == 0
    assert 0 < values["acquire_p50_seconds"] <= values["acquire_p99_seconds"] < values["first_turn_p99_seconds"]
    assert [(row["block"], row["episodes"]) for row in result["rows"]] == [("episodes", 4), ("plain", 4)]
    assert (result["bench"], result["settings"]["turns"]) == ("agents", 2)


def test_the_figures_compare_episodes_with_plain_generation_of_the_same_run() -> None:
    rows = [
        {"block": kind, "episodes": 50, "seconds": seconds}
        for kind, seconds in (("episodes", 2.0), ("plain", 1.0), ("episodes", 4.0), ("plain", 2.0))
    ]
    found = {figure["name"]: figure for figure in figures(Measured(rows, [0.01, 0.2], [0.3, 0.4], 1, 2))}
    assert found["episodes_per_minute"]["value"] == 60 * 100 / 6
    assert found["episodes_per_minute"]["limit"] == 60 * 100 / 3
    assert (found["over_plain"]["value"], found["over_plain"]["limit"]) == (0.5, 1.0)
    assert (found["acquire_p99_seconds"]["value"], found["acquire_p99_seconds"]["goal"]) == (0.2, 0.1)
    assert (found["failed_episodes"]["value"], found["differing_responses"]["value"]) == (1, 2)


def test_a_percentile_is_a_value_that_enough_do_not_exceed() -> None:
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile(range(1, 201), 0.99) == 198
    assert percentile(range(1, 101), 0.5) == 50
