"""The scorers that come with the runtime. Each is a plain function of (prompt, response, **config), as a user's own
is."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from rljob_runtime.data.prompt import Prompt

LIBRARIES = {"math": "math_verify", "reasoning_gym": "reasoning_gym"}
"""What a function imports when it is first called. A worker imports it before it gives up its rights: some libraries
want to write when they are imported."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def math(prompt: Prompt, response: str) -> float:
    """1 if the response's final answer equals the reference by math-verify, else 0.

    The checker's own time-outs are off: they count wall clock, and call a right answer wrong on a busy machine. What
    takes too long is ended with its worker and has no value.
    """
    from math_verify import parse, verify

    gold = parse(f"${prompt.answer}$", parsing_timeout=0) or parse(str(prompt.answer), parsing_timeout=0)
    if not gold:
        raise ValueError(f"the reference answer {prompt.answer!r} is no mathematical expression")
    return float(verify(gold, parse(response, parsing_timeout=0), timeout_seconds=None))


def reasoning_gym(prompt: Prompt, response: str, *, task: str | None = None, extract: str = "Auto") -> float:
    """The task's own score, 0 to 1.

    `extract` says what of the response is the answer: `Whole`; `LastNumber` (for arithmetic); `Tag` (what stands in the
    last <answer>…</answer>); `Auto` takes the tag if there is one, else the whole.
    """
    name = task or prompt.metadata.get("source_dataset")
    if not name:
        raise ValueError("the prompt names no reasoning-gym task; set the reward's config.task")
    entry = {"question": prompt.question, "answer": prompt.answer, "metadata": dict(prompt.metadata)}
    return float(_scorer(name)(answer=_extract(response, extract), entry=entry))


def has_number(prompt: Prompt, response: str) -> float:
    """1 if the response has a number in it, else 0: a format reward for arithmetic."""
    return float(_NUMBER.search(response) is not None)


def last_number(prompt: Prompt, response: str) -> float:
    """1 if the last number in the response equals the reference answer, else 0."""
    found = _NUMBER.findall(response)
    return float(bool(found) and float(found[-1]) == float(prompt.answer))


def _extract(response: str, how: str) -> str | None:
    text = response.strip()
    if how == "Whole":
        return text
    if how == "LastNumber":
        numbers = _NUMBER.findall(text)
        return numbers[-1] if numbers else None
    if how in ("Tag", "Auto"):
        tag = _last_tag(text)
        if tag is not None:
            return tag.strip()
        return text if how == "Auto" else None
    raise ValueError(f"extract is {how!r}; one of Whole, LastNumber, Tag and Auto would be right")


def _last_tag(text: str) -> str | None:
    """What stands in the last <answer>…</answer>. A tag begins at the first <answer> after the one before."""
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
    """Have the checker build its tables."""
    _checker_ready()


@cache
def _checker_ready() -> None:
    math(Prompt(0, "", (), "1/2"), "So it is $\\frac{2}{4}$.")


def _ready_reasoning_gym(prompt: Prompt, *, task: str | None = None, extract: str = "Auto") -> None:
    """Make the task's scorer."""
    name = task or prompt.metadata.get("source_dataset")
    if name:
        _scorer(name)


READIED = {"math": _ready_math, "reasoning_gym": _ready_reasoning_gym}
"""What is done in the worker before a text is evaluated apart, by function: it is then there for all later ones."""


@cache
def _scorer(name: str) -> Any:
    import reasoning_gym

    return reasoning_gym.get_score_answer_fn(name)
