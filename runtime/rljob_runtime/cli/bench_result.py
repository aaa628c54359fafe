"""Benchmark result: the figures of a benchmark, in the shape that `rljob bench` prints and writes (`cli.bench`)."""

from __future__ import annotations

from typing import Any


class OptionError(ValueError):
    """An option has a value that the benchmark cannot use. The message has the option, the value and a valid value."""


def figure(
    name: str,
    value: float,
    goal: float | None = None,
    anchor: str | None = None,
    limit: float | None = None,
    *,
    unit: str = "ratio",
    better: str = "higher",
) -> dict[str, Any]:
    """Return one figure of a result.

    `anchor`: source of the goal or the limit. `limit`: the best possible value. `better`: higher, lower, or nearest to
    the goal.
    """
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "better": better,
        "goal": goal,
        "anchor": anchor,
        "limit": limit,
    }
