"""Reward signatures: functions written for TRL and verl work as they are.

| framework | the function takes | it returns |
|---|---|---|
| RLJob | (prompt, response, **config) | a number |
| verl | (data_source, solution_str, ground_truth, extra_info, **config) | a number, or an object with `score` |
| TRL | (prompts, completions, columns of the data set by name, **config) | a list of numbers |

Parameter names tell which it is. A function for TRL receives lists of one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

Reward = Callable[..., Any]
"""Called with (prompt, response); it returns a number, or a coroutine of one."""


def as_reward(function: Callable[..., Any], config: Mapping[str, Any]) -> Reward:
    """Return a function of (prompt, response) that calls `function` by its signature.

    Raises `TypeError` when it cannot be called so with `config`.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # a callable without a signature is checked by its first call
        return lambda prompt, response: function(prompt, response, **config)
    names = signature.parameters
    if "completions" in names:
        return _of_trl(function, signature, config)
    if "solution_str" in names and "ground_truth" in names:
        return _of_verl(function, signature, config)
    signature.bind(None, "", **config)
    return lambda prompt, response: function(prompt, response, **config)


def _of_verl(function: Callable[..., Any], signature: inspect.Signature, config: Mapping[str, Any]) -> Reward:
    def arguments(prompt: Any, response: str) -> dict[str, Any]:
        offered = {
            "data_source": prompt.metadata.get("data_source"),
            "solution_str": response,
            "ground_truth": prompt.answer,
            "extra_info": prompt.metadata.get("extra_info"),
        }
        return {**_taken(offered, signature), **config}

    signature.bind(
        **_taken(dict.fromkeys(("data_source", "solution_str", "ground_truth", "extra_info")), signature), **config
    )
    return lambda prompt, response: _finished(function(**arguments(prompt, response)), _score)


def _of_trl(function: Callable[..., Any], signature: inspect.Signature, config: Mapping[str, Any]) -> Reward:
    def arguments(prompt: Any, response: str) -> dict[str, Any]:
        conversational = not isinstance(prompt.text_or_messages, str)
        completion: Any = [{"role": "assistant", "content": response}] if conversational else response
        given = [dict(message) for message in prompt.text_or_messages] if conversational else prompt.text_or_messages
        columns = {name: [value] for name, value in prompt.metadata.items()}
        offered = {"answer": [prompt.answer], **columns, "prompts": [given], "completions": [completion]}
        return {**_taken(offered, signature), **config}

    known = set(signature.parameters)
    if unknown := [name for name in config if name not in known and not _takes_any(signature)]:
        raise TypeError(f"it takes no {', '.join(unknown)}")
    return lambda prompt, response: _finished(function(**arguments(prompt, response)), _only)


def _takes_any(signature: inspect.Signature) -> bool:
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in signature.parameters.values())


def _taken(offered: Mapping[str, Any], signature: inspect.Signature) -> dict[str, Any]:
    """Return the offered arguments that a function takes."""
    if _takes_any(signature):
        return dict(offered)
    return {name: value for name, value in offered.items() if name in signature.parameters}


def _finished(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert a result; a coroutine is converted when it is awaited."""
    if not inspect.iscoroutine(value):
        return convert(value)

    async def awaited() -> Any:
        return convert(await value)

    return awaited()


def _score(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "score" not in value:
        raise TypeError(f"it returned an object with {', '.join(map(str, value))}; one with score would be right")
    return value["score"]


def _only(values: Any) -> Any:
    if isinstance(values, str | bytes) or not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
        raise TypeError(f"it returned {type(values).__name__}; a list with a number for each completion would be right")
    if len(values) != 1:
        raise TypeError(f"it returned {len(values)} values for 1 completion; one number for each would be right")
    if values[0] is None:
        raise TypeError("it returned None for the completion; a number would be right, 0 where it does not apply")
    return values[0]
