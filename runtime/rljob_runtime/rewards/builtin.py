"""Built-in rewards: reward functions that are public API.

Each is a plain function of (prompt, response, **config), like a user's own function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from rljob_runtime.data.prompt import Prompt
from rljob_runtime.rewards import answers
from rljob_runtime.rewards.answers import numerals
from rljob_runtime.rewards.answers.arithmetic import TooLarge

LIBRARIES = {"math": "math_verify", "reasoning_gym": "reasoning_gym"}
"""Library that a function imports on its first call. A worker imports it before it gives up its rights, because some
libraries write files on import."""


def math(prompt: Prompt, response: str) -> float:
    """Return 1 if the response's final answer equals the reference, else 0.

    See `answers`. Raises `UnusableReference`.
    """
    return float(answers.matches(str(prompt.answer), response))


def reasoning_gym(prompt: Prompt, response: str, *, task: str | None = None, extract: str = "Auto") -> float:
    """Return the task's own score, 0 to 1.

    `extract` selects the answer in the response: `Whole`; `LastNumber` (for arithmetic); `Tag` (the content of the last
    <answer>…</answer>); `Auto` takes the tag if there is one, else the whole response.
    """
    name = task or prompt.metadata.get("source_dataset")
    if not name:
        raise ValueError("the prompt names no reasoning-gym task; set the reward's config.task")
    entry = {"question": prompt.question, "answer": prompt.answer, "metadata": dict(prompt.metadata)}
    return float(_scorer(name)(answer=_extract(response, extract), entry=entry))


def has_number(prompt: Prompt, response: str) -> float:
    """Return 1 if the response contains a number, else 0.

    A format reward for arithmetic.
    """
    return float(numerals.has_number(response))


def last_number(prompt: Prompt, response: str) -> float:
    """Return 1 if the last number in the response equals the reference answer, else 0.

    Raises `UnusableReference`.
    """
    expected = numerals.only_number(str(prompt.answer))
    try:
        return float(numerals.last_number(response) == expected)
    except TooLarge:
        return 0.0


def _extract(response: str, how: str) -> str | None:
    text = response.strip()
    if how == "Whole":
        return text
    if how == "LastNumber":
        return numerals.last_numeral(text)
    if how in ("Tag", "Auto"):
        tag = _last_tag(text)
        if tag is not None:
            return tag.strip()
        return text if how == "Auto" else None
    raise ValueError(f"extract is {how!r}; one of Whole, LastNumber, Tag and Auto would be right")


def _last_tag(text: str) -> str | None:
    """Return the content of the last <answer>…</answer>.

    A tag begins at the first <answer> after the previous tag.
    """
    found: str | None = None
    end = 0
    while (begin := text.find("<answer>", end)) >= 0:
        begin += len("<answer>")
        end = text.find("</answer>", begin)
        if end < 0:
            break
        found = text[begin:end]
    return found


def _ready_math(prompt: Prompt) -> None:
    """Build the checker's tables and read the reference."""
    _checker_ready()
    answers.reference(str(prompt.answer))


@cache
def _checker_ready() -> None:
    answers.matches("\\sqrt{\\frac{1}{2}}", "So it is $\\frac{\\sqrt{2}}{2}$.")


def _ready_reasoning_gym(prompt: Prompt, *, task: str | None = None, extract: str = "Auto") -> None:
    """Build the task's scorer."""
    name = task or prompt.metadata.get("source_dataset")
    if name:
        _scorer(name)


PREPARATIONS = {"math": _ready_math, "reasoning_gym": _ready_reasoning_gym}
"""Work that a worker does before an isolated evaluation, by function. Later evaluations find the result in the
worker."""


def _check_math(prompt: Prompt) -> None:
    answers.reference(str(prompt.answer))


def _check_last_number(prompt: Prompt) -> None:
    numerals.only_number(str(prompt.answer))


CHECKS: dict[str, Callable[[Prompt], None]] = {"math": _check_math, "last_number": _check_last_number}
"""Check of a reference answer, by function. It runs when prompts are read. Each raises `UnusableReference`."""


@cache
def _scorer(name: str) -> Any:
    import reasoning_gym

    return reasoning_gym.get_score_answer_fn(name)
