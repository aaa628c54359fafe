"""The example of a tool: what it calculates, and that its model, its prompts and its job fit together."""

from __future__ import annotations

import re

import pytest

from rljob_api import load
from rljob_env.foreign_code.functions import called, described, load_function
from rljob_runtime.models.toy_calculator import PHRASING, calculator_tool
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
CALCULATE = load_function(EXAMPLES, "calculator.py:calculate")
JOB = load((EXAMPLES / "calculator-agent.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("47 * 68", "3196"),
        (" 2+3*4 ", "14"),
        ("(2 + 3) * -4", "-20"),
        ("10 - 4 - 3", "3"),
        ("7 / 2", "error: 7 / 2 is no integer, and no +, - or *"),
        ("9 ** 9 ** 9", "error: 9 ** 9 ** 9 is no integer, and no +, - or *"),
        ("1.5 + 1", "error: 1.5 is no integer, and no +, - or *"),
        ("True + 1", "error: True is no integer, and no +, - or *"),
        ("__import__('os').getcwd()", "error: __import__('os').getcwd() is no integer, and no +, - or *"),
        ("47 *", "error: invalid syntax"),
        ("", "error: invalid syntax"),
        ("1" + "+1" * 50, "error: more than 100 characters"),
    ],
)
def test_the_calculator_calculates_and_runs_nothing(expression: str, result: str) -> None:
    assert called(CALCULATE, expression=expression) == result


@pytest.mark.parametrize("expression", ["\0", "(" * 99, "-" * 99, "1 +\n1", "007"])
def test_the_calculator_answers_whatever_a_model_writes(expression: str) -> None:
    assert re.fullmatch(r"error: .+", called(CALCULATE, expression=expression))


def test_the_calculator_is_the_tool_that_the_toy_calls() -> None:
    offered, known = described(CALCULATE), calculator_tool()["function"]
    assert offered["name"] == known["name"]
    assert offered["parameters"]["properties"] == known["parameters"]["properties"]
    assert offered["parameters"]["required"] == known["parameters"]["required"]


def test_the_calculator_job_asks_what_the_toy_understands() -> None:
    import reasoning_gym  # half a second, which each process that collects tests would take

    assert JOB.spec.data.prompts is not None
    prompts = JOB.spec.data.prompts.reasoning_gym
    assert prompts is not None
    records = reasoning_gym.create_dataset(prompts.task, size=100, seed=1, **(prompts.config or {}))
    understood = re.compile(re.escape(PHRASING).replace(r"\{expression\}", r"[1-9]\d \* [1-9]\d"))
    assert all(understood.fullmatch(record["question"]) for record in records)


def test_the_calculator_jobs_tool_is_in_its_folder() -> None:
    (environment,) = JOB.spec.environments
    names = [tool.function for tool in environment.tools or ()]
    assert [load_function(EXAMPLES, name).__name__ for name in names if name] == ["calculate"]
