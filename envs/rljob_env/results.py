"""Results: the reward and the metrics that foreign code states, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def reward_and_metrics(value: Any) -> tuple[float | None, dict[str, float]]:
    """Return the reward and the metrics in a value: a number, None, or an object with `reward` and other numbers.

    The numbers may also stand in an object `metrics`. Raises `ValueError` with what is wrong.
    """
    if value is None:
        return None, {}
    if not isinstance(value, Mapping):
        return finite(value, "the reward"), {}
    inner = value.get("metrics") or {}
    if not isinstance(inner, Mapping):
        raise ValueError(f"metrics is {inner!r:.100}; an object of numbers would be right")
    metrics = {name: one for name, one in value.items() if name not in ("reward", "metrics")} | dict(inner)
    reward = value.get("reward")
    return (
        None if reward is None else finite(reward, "reward"),
        {str(name): finite(one, f"metrics.{name}") for name, one in metrics.items()},
    )


def finite(value: Any, name: str) -> float:
    """Return a finite number. Truth values count as 0 and 1. Raises `ValueError`."""
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ValueError(f"{name} is {value!r:.100}; a finite number would be right")
