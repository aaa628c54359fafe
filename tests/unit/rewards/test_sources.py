"""Rewards by source: a source's rules score its responses, and no others."""

from __future__ import annotations

import asyncio

import pytest

from rljob_api import load
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.protocols.rewards import terms_of
from rljob_runtime.rewards import RewardPool, rules_of_sources
from rljob_runtime.rewards.references import reference_problem
from tests.support.api.jobs import REMOVE, job

GYM = {"reasoningGym": {"task": "basic_arithmetic"}}
SPEC = {
    "spec.data.prompts": REMOVE,
    "spec.data.sources": [
        {"name": "words", "weight": 3, "prompts": GYM, "rewards": ["number", "right"]},
        {"name": "sums", "weight": 1, "prompts": GYM, "rewards": ["number"]},
        {"name": "all", "weight": 1, "prompts": GYM},
    ],
    "spec.rewards": [
        {"name": "number", "kind": "Python", "function": "rljob_runtime.rewards.builtin:has_number", "weight": 0.5},
        {"name": "right", "kind": "Python", "function": "rljob_runtime.rewards.builtin:last_number"},
    ],
}


@pytest.mark.parametrize(
    ("source", "reward", "terms"),
    [
        ("words", 1.5, {"number": 1.0, "right": 1.0}),
        ("sums", 0.5, {"number": 1.0}),
        pytest.param("all", 1.5, {"number": 1.0, "right": 1.0}, marks=pytest.mark.slow),
        ("", 1.5, {"number": 1.0, "right": 1.0}),
    ],
)
def test_the_rules_of_a_source_score_its_responses(source: str, reward: float, terms: dict[str, float]) -> None:
    rules = rules_of_sources(load(job(SPEC)).spec)

    async def scored() -> float:
        async with RewardPool(rules) as pool:
            return await pool.score(Prompt(0, "4 + 3", (1,), "7", source=source), "it is 7")

    found = asyncio.run(scored())
    assert (float(found), dict(terms_of(found))) == (reward, terms)


def test_a_record_is_checked_by_the_rules_of_its_source() -> None:
    problem = reference_problem(rules_of_sources(load(job(SPEC)).spec))
    assert problem(Prompt(0, "4 + 3", (1,), "seven", source="sums")) is None
    assert "reward right cannot score it" in str(problem(Prompt(0, "4 + 3", (1,), "seven", source="words")))


@pytest.mark.parametrize(
    ("source", "terms"),
    [
        ("", {"number": 1.0, "right": 1.0}),
        ("evaluation:digits", {"number": 1.0}),
        ("evaluation:whole", {"number": 1.0, "right": 1.0}),
    ],
)
def test_the_rules_of_an_evaluation_score_its_responses(source: str, terms: dict[str, float]) -> None:
    evaluations = [{"name": "digits", "prompts": GYM, "rewards": ["number"]}, {"name": "whole", "prompts": GYM}]
    rules = rules_of_sources(load(job({"spec.rewards": SPEC["spec.rewards"], "spec.evaluation": evaluations})).spec)

    async def scored() -> float:
        async with RewardPool(rules) as pool:
            return await pool.score(Prompt(0, "4 + 3", (1,), "7", source=source), "it is 7")

    assert dict(terms_of(asyncio.run(scored()))) == terms
