"""Benchmark result: the figures of a benchmark, in the shape that `rljob bench` prints and writes (`cli.bench`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

COLUMNS = ("figure", "value", "unit", "better", "goal", "limit")


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


def cells(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the row of each figure, in the order of `COLUMNS`."""
    for row in result["figures"]:
        numbers = (row["value"], row.get("goal"), row.get("limit"))
        value, goal, limit = (
            "" if number is None else f"{number:.4g}" if isinstance(number, int | float) else str(number)
            for number in numbers
        )
        yield row["name"], value, row["unit"], row["better"], goal, limit


def markdown_table(result: dict[str, Any]) -> str:
    """Format a result as a heading and a Markdown table."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *cells(result)]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"## {result['bench']} (seed {result['seed']})\n\n{table}"
