"""What came of all faults: a table for people, an object for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """A fault and what came of it, in seconds from the fault. `wrong`: why it does not count as mended."""

    row: str
    victim: str
    detected: float | None
    acted: float | None
    back: float | None
    wrong: tuple[str, ...] = ()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed. Raises `ValueError` for no values."""
    if not values:
        raise ValueError("no values have no percentile")
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def figures(outcomes: Iterable[Outcome]) -> dict[str, dict[str, Any]]:
    """By row, in the order in which rows came first: how many, how many were not mended, and p50 and worst of each
    time; None where nobody has one."""
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.row, []).append(outcome)
    return {
        row: {
            "count": len(found),
            "wrong": sum(bool(one.wrong) for one in found),
            **{moment: _spread([getattr(one, moment) for one in found]) for moment in MOMENTS},
        }
        for row, found in rows.items()
    }


MOMENTS = ("detected", "acted", "back")


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"p50": percentile(known, 0.5), "worst": max(known)} if known else None


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures in columns of seconds."""
    head = ["fault", "count", "wrong", *(f"{moment} {one}" for moment in MOMENTS for one in ("p50", "worst"))]
    lines = [head]
    for row, found in rows.items():
        times = [_seconds(found[moment], one) for moment in MOMENTS for one in ("p50", "worst")]
        lines.append([row, str(found["count"]), str(found["wrong"]), *times])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if not number else cell.rjust(width) for number, (cell, width) in enumerate(pairs))
        for pairs in ([*zip(line, widths, strict=True)] for line in lines)
    )


def _seconds(spread: Mapping[str, float] | None, one: str) -> str:
    return "-" if spread is None else f"{spread[one]:.1f} s"
