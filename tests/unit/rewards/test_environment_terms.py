"""The environment's reward is a term of the sum like the others, and its absence is no zero."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import load
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.protocols import RewardFailed
from rljob_runtime.protocols.rewards import Reward
from rljob_runtime.rewards import RewardPool, rules_of_sources
from rljob_runtime.rewards.environment_terms import environment_terms
from rljob_runtime.rewards.rules import EnvironmentRule
from tests.support.api.jobs import REMOVE, job

NUMBER = {"name": "number", "kind": "Python", "function": "rljob_runtime.rewards.builtin:has_number", "weight": 0.25}
SOLVED = {"name": "solved", "kind": "Environment", "weight": 0.5}
WORDS = {"file": {"path": "/words.jsonl"}}
OWN = {"name": "own", "kind": "Agent", "command": ["agent"]}


def scored(given: float | None, source: str = "", **edits: Any) -> Reward:
    spec = load(job({"spec.rewards": [NUMBER, SOLVED], "spec.environments": [OWN], **edits})).spec

    async def run() -> Reward:
        async with RewardPool(rules_of_sources(spec)) as pool:
            return await pool.score(Prompt(0, "4 + 3", (1,), "7", source=source), "it is 7", given)

    return asyncio.run(run())


def test_the_environments_reward_is_added_with_its_weight() -> None:
    found = scored(0.8)
    assert float(found) == pytest.approx(0.25 + 0.5 * 0.8)
    assert list(found.terms.items()) == [("number", 1.0), ("solved", 0.8)]


def test_the_environments_reward_may_be_the_only_term() -> None:
    found = scored(0.8, **{"spec.rewards": [SOLVED]})
    assert (float(found), dict(found.terms)) == (0.4, {"solved": 0.8})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, r"reward solved \(NotGiven\): the environment gave no reward"),
        (2e6, r"reward solved \(OutOfRange\): the environment's reward is 2e\+06, outside its range"),
    ],
)
def test_an_episode_without_a_reward_of_its_range_has_none_and_is_no_zero(given: float | None, text: str) -> None:
    with pytest.raises(RewardFailed, match=text) as raised:
        scored(given)
    assert raised.value.by_response, "a replacement would select episodes that have one"


def test_a_source_may_leave_the_rule_out() -> None:
    sources = [
        {"name": "plain", "weight": 1, "prompts": WORDS, "rewards": ["number"]},
        {"name": "all", "weight": 1, "prompts": WORDS},
    ]
    edits = {"spec.data.prompts": REMOVE, "spec.data.sources": sources}
    assert scored(0.8, "plain", **edits).terms == {"number": 1.0}
    assert scored(0.8, "all", **edits).terms == {"number": 1.0, "solved": 0.8}
    assert float(scored(None, "plain", **edits)) == 0.25


WEIGHTS = st.lists(st.floats(-1000, 1000), min_size=1, max_size=4)


@given(WEIGHTS, st.floats(-1e6, 1e6))
def test_every_rule_of_an_environment_counts_the_same_value(weights: list[float], value: float) -> None:
    rules = [EnvironmentRule(f"r{index}", weight) for index, weight in enumerate(weights)]
    found = environment_terms(rules, Prompt(0, "", (1,)), value)
    assert float(found) == pytest.approx(sum(weight * value for weight in weights))
    assert dict(found.terms) == {rule.name: value for rule in rules}
