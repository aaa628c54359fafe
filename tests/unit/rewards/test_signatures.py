"""Reward functions with the signatures of TRL and verl work as they are."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rljob_runtime.data.prompt import Prompt
from rljob_runtime.rewards.function_worker import load, score
from rljob_runtime.rewards.rules import InvalidReward, Rule
from rljob_runtime.rewards.signatures import as_reward

TEXT = Prompt(0, "1 + 1", array("i", [1]), "2", {"data_source": "gsm8k", "extra_info": {"split": "train"}, "level": 3})
CHAT = Prompt(0, ({"role": "user", "content": "1 + 1"},), array("i", [1]), "2", {"level": 3})


def own(prompt: Any, response: str, *, limit: int = 9) -> float:
    return float(prompt.answer in response and len(response) < limit)


def verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    assert (data_source, extra_info) == ("gsm8k", {"split": "train"})
    return float(ground_truth in solution_str)


def verl_object(solution_str: str, ground_truth: str, bonus: float = 0.0, **kwargs: Any) -> dict[str, Any]:
    assert kwargs["data_source"] == "gsm8k"
    return {"score": float(ground_truth in solution_str) + bonus, "acc": True}


def trl(prompts: Any, completions: Any, answer: Any, level: Any, **kwargs: Any) -> list[float]:
    assert prompts == ["1 + 1"]
    assert level == [3]
    return [float(right in text) for text, right in zip(completions, answer, strict=True)]


def trl_of_messages(completions: Any, **kwargs: Any) -> list[float]:
    assert kwargs["prompts"] == [[{"role": "user", "content": "1 + 1"}]]
    return [float("2" in completion[0]["content"]) for completion in completions]


async def trl_async(completions: list[str], answer: list[str]) -> list[float]:
    return [float(answer[0] in completions[0])]


@pytest.mark.parametrize(
    ("function", "prompt", "config"),
    [
        (own, TEXT, {"limit": 5}),
        (verl, TEXT, {}),
        (verl_object, TEXT, {}),
        (trl, TEXT, {}),
        (trl_of_messages, CHAT, {}),
        (trl_async, TEXT, {}),
    ],
)
def test_each_signature_is_called_by_its_names(function, prompt, config):
    reward = as_reward(function, config)
    assert score(reward, prompt, "it is 2") == (0.0 if config else 1.0)
    assert score(reward, prompt, "no") == 0.0


def test_config_reaches_the_function():
    assert score(as_reward(verl_object, {"bonus": 0.5}), TEXT, "2") == 1.5


def wrong_length(completions: list[str]) -> list[float]:
    return [1.0, 2.0]


def no_list(completions: list[str]) -> float:
    return 1.0


def none(completions: list[str]) -> list[None]:
    return [None]


def no_score(solution_str: str, ground_truth: str) -> dict[str, float]:
    return {"acc": 1.0}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (wrong_length, "it returned 2 values for 1 completion"),
        (no_list, "it returned float; a list with a number for each completion would be right"),
        (none, "it returned None for the completion"),
        (no_score, "it returned an object with acc; one with score would be right"),
    ],
)
def test_a_wrong_result_says_what_is_right(function, said):
    with pytest.raises(TypeError, match=said):
        score(as_reward(function, {}), TEXT, "2")


@pytest.mark.parametrize(
    ("function", "config"), [(own, {"limits": 1}), (verl, {"bonus": 1}), (trl_async, {"bonus": 1})]
)
def test_config_that_the_function_does_not_take_is_refused_at_start(function, config):
    with pytest.raises(TypeError):
        as_reward(function, config)


def test_a_rule_with_wrong_config_names_the_call():
    with pytest.raises(InvalidReward, match=r"is no call that fits: "):
        load(Rule("a", f"{__name__}:own", config={"limits": 1}))
