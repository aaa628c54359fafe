"""The figures of a benchmark, in the shape that `rljob bench` prints and writes (`cli.bench`)."""

from __future__ import annotations

from typing import Any


class OptionError(ValueError):
    """An option's value that a benchmark cannot use. The message has the option, the value and what would be right."""


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
    """`anchor`: what the goal or the limit was taken from. `limit`: what nothing could do better than.
    `better`: higher, lower, or nearest to the goal."""
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "better": better,
        "goal": goal,
        "anchor": anchor,
        "limit": limit,
    }
