"""Environments of prompts: which environment a record names, and the record as its runner receives it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rljob_runtime.data.prompt import Prompt

FIELD = "environment"
"""Field of a record with the name of its environment."""

Problem = Callable[[Prompt], str | None]


def environment_of(prompt: Prompt, environments: Sequence[str]) -> str:
    """Return the environment that a prompt's record names; the first one if it names none."""
    return prompt.metadata.get(FIELD) or environments[0]


def or_unknown_environment(environments: Sequence[str], problem: Problem) -> Problem:
    """Return `problem`, and before it what is wrong with the environment that a prompt names.

    Without environments the field has no meaning.
    """
    if not environments:
        return problem

    def found(prompt: Prompt) -> str | None:
        named = prompt.metadata.get(FIELD)
        if named is None or named == "" or named in environments:
            return problem(prompt)
        right = f"a name in spec.environments would be right: {', '.join(environments)}"
        return f"field {FIELD!r} is {named!r}; {right}"

    return found


def record_of(prompt: Prompt) -> dict[str, object]:
    """Return the fields of a prompt's record as JSON values.

    The prompt and the reference answer are in `prompt` and `answer`, whatever fields of the file had them.
    """
    fields = {**prompt.metadata, "prompt": prompt.text_or_messages, "answer": prompt.answer}
    return {str(name): json_value(value) for name, value in fields.items()}


def json_value(value: object) -> object:
    """Return a value as JSON can hold it: one without a JSON form as text, and a number that is not finite as null.

    >>> json_value({1: (2.5, float("nan"), b"x", None)})
    {'1': [2.5, None, "b'x'", None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    return str(value)
