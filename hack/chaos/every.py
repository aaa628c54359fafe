"""Every kind: the campaigns that together have faults of every kind, because one job cannot have all of them.

Rows of agents need a job with environments, and rows of switches one whose machines switch their size. The faults are
shared by the numbers of rows, so that each kind comes about as often as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .rows import AGENTS, ROWS, SWITCHES


@dataclass(frozen=True)
class Part:
    """A campaign: its name, its rows, and how many faults of all it has."""

    name: str
    rows: tuple[str, ...]
    faults: int

    def arguments(self, seed: int, json: Path | None) -> list[str]:
        """Return the arguments of `hack.chaos`. `json`: that of the whole, beside which this one has its own."""
        words = ["--rows", *self.rows, "--faults", str(self.faults), "--seed", str(seed)]
        return words if json is None else [*words, "--json", str(self.file(json))]

    def file(self, json: Path) -> Path:
        """Return where the campaign's result is: that of the first one where it always was."""
        return json if self.name == "plain" else json.with_stem(f"{json.stem}-{self.name}")


def parts(faults: int) -> list[Part]:
    """Share so many faults among the campaigns. One without faults is left out, but the first one.

    Raises `ValueError` for a negative number.
    """
    if faults < 0:
        raise ValueError(f"{faults} faults: 0 or more would be right")
    kinds = {
        "plain": tuple(name for name in ROWS if name not in AGENTS | SWITCHES),
        "agents": tuple(name for name in ROWS if name in AGENTS),
        "switches": tuple(name for name in ROWS if name in SWITCHES),
    }
    counts = {name: faults * len(rows) // len(ROWS) for name, rows in kinds.items()}
    by_rest = sorted(kinds, key=lambda name: -(faults * len(kinds[name]) % len(ROWS)))
    for name in by_rest[: faults - sum(counts.values())]:
        counts[name] += 1
    return [Part(name, rows, counts[name]) for name, rows in kinds.items() if counts[name] or name == "plain"]


def summary(found: Sequence[dict[str, Any]], all_ran: bool) -> str:
    """Return the last line of the whole from the results of its campaigns. `all_ran`: all have ended well."""
    wrong = sum(bool(fault["wrong"]) for one in found for fault in one["faults"])
    lost, twice = (_sum([one["check"].get(name) for one in found]) for name in ("lost", "duplicated"))
    leaked = _sum([one["leaked"] for one in found])
    state = "Complete" if all_ran and not any(one["trouble"] for one in found) else "Failed"
    return (
        f"chaos: {state} faults={sum(len(one['faults']) for one in found)} unmended={wrong} "
        f"lost={lost} duplicated={twice} leaked={leaked}"
    )


def _sum(numbers: Sequence[int | str | None]) -> int | str:
    known = [one for one in numbers if isinstance(one, int)]
    return sum(known) if known and len(known) == len(numbers) else "unknown"
