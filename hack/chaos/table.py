"""Table: the outcomes of all faults, as a table for people and an object for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_bench.lib.percentile import percentile

from .timeline import MOMENTS as LOSS
from .timeline import in_starts, own_start


@dataclass(frozen=True)
class Outcome:
    """A fault and its times, in seconds from the fault.

    `wrong`: why it does not count as recovered. `moments`: times of a node's loss, by the names of `timeline.MOMENTS`.
    """

    row: str
    victim: str
    detected: float | None
    acted: float | None
    back: float | None
    wrong: tuple[str, ...] = ()
    moments: Mapping[str, float] = field(default_factory=dict)


def figures(outcomes: Iterable[Outcome], starts: Iterable[float]) -> dict[str, dict[str, Any]]:
    """Return for each row its count, its failures, and p50 and worst of each time; None if no fault has the time.

    Rows are in the order of their first fault. `starts`: seconds of the machines' first starts. The time until a lost
    machine generates is also given in units of their median, and of the replacement's own start.
    """
    known = list(starts)
    first = percentile(known, 0.5) if known else None
    rows: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.row, []).append(outcome)
    return {
        row: {
            "count": len(found),
            "wrong": sum(bool(one.wrong) for one in found),
            **{moment: _spread([getattr(one, moment) for one in found]) for moment in MOMENTS},
            "moments": {moment: _spread([one.moments.get(moment) for one in found]) for moment in LOSS},
            "starts": {
                "own": _spread([in_starts(one.moments, own_start(one.moments)) for one in found]),
                "first": _spread([in_starts(one.moments, first) for one in found]),
            },
        }
        for row, found in rows.items()
    }


MOMENTS = ("detected", "acted", "back")
STARTS = ("own", "first")


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"p50": percentile(known, 0.5), "worst": max(known)} if known else None


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw the figures in columns of seconds; below them the moments of node losses, and those in units of starts."""
    lines = [["fault", "count", "wrong", *_columns(MOMENTS)]]
    for row, found in rows.items():
        lines.append([row, str(found["count"]), str(found["wrong"]), *_times(found, MOMENTS)])
    lost = {row: found for row, found in rows.items() if any(found["moments"].values())}
    seconds = [[row, *_times(found["moments"], LOSS)] for row, found in lost.items()]
    starts = [[row, *_times(found["starts"], STARTS, unit="")] for row, found in lost.items()]
    tables = (
        lines,
        [["node lost", *_columns(LOSS)], *seconds],
        [["generating again, in starts", *_columns(STARTS)], *starts],
    )
    return "\n\n".join(_aligned(one) for one in tables if len(one) > 1)


def _columns(moments: Iterable[str]) -> list[str]:
    return [f"{moment} {one}" for moment in moments for one in ("p50", "worst")]


def _times(found: Mapping[str, Any], moments: Iterable[str], unit: str = " s") -> list[str]:
    return [_cell(found[moment], one, unit) for moment in moments for one in ("p50", "worst")]


def _aligned(lines: list[list[str]]) -> str:
    head = lines[0]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if not number else cell.rjust(width) for number, (cell, width) in enumerate(pairs))
        for pairs in ([*zip(line, widths, strict=True)] for line in lines)
    )


def _cell(spread: Mapping[str, float] | None, one: str, unit: str) -> str:
    return "-" if spread is None else f"{spread[one]:.1f}{unit}" if unit else f"{spread[one]:.2f}"
