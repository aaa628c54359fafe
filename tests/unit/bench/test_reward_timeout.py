"""The reward timeout's benchmark: what it draws, and that a small run has every figure."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise

import pytest

from rljob_bench import reward_timeout as reward_timeout_bench
from rljob_bench.reward_timeout import Plan, draw, reward_timeout


def test_the_shares_are_those_of_the_plan_whatever_the_seed() -> None:
    plan = Plan()
    total = plan.problems * plan.rounds * plan.responses
    drawn = [draw(plan, random.Random(seed)) for seed in range(5)]
    for responses in drawn:
        kinds = Counter(response.kind for response in responses)
        assert kinds == {"endless": 4, "wrong": 32, "right": 44}
        assert len(responses) == total
        assert set(Counter(response.problem for response in responses).values()) == {plan.rounds * plan.responses}
        slow = {response.problem for response in responses if response.seconds > 1}
        assert len(slow) == 2
    assert all(a != b for a, b in pairwise(drawn))
    assert draw(plan, random.Random(3)) == drawn[3]


@pytest.mark.slow
def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(
        problems=1, responses=3, slow_share=0.0, wrong_share=1 / 3, endless_share=1 / 6, max_seconds=3.0, processes=1
    )
    monkeypatch.setattr(reward_timeout_bench, "QUICK", plan)
    result = json.loads(json.dumps(reward_timeout(quick=True, seed=1)))
    figures = {figure["name"]: figure for figure in result["figures"]}
    assert figures.keys() == {"cpu_saved", "reward_time", "right_lost"}
    assert figures["right_lost"]["value"] == 0
    assert 0.9 < figures["cpu_saved"]["value"] < 1.1 * figures["cpu_saved"]["limit"]
    passed = {(row["timeout"], row["kind"]): (row["responses"], row["passed"]) for row in result["rows"]}
    for name in ("fixed", "adaptive"):
        assert passed[name, "right"] == (3, 3)
        assert passed[name, "wrong"] == (2, 0)
        assert passed[name, "endless"] == (1, 0)
